"""Mamba-2: nothing but mixers, each behind a norm."""

from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.family import SIZES, DTypes, Family, decoder, model_config, residual
from baton.engine.models.fields import Fields
from baton.engine.models.layers.mamba2 import Mamba2Fields, Mamba2Mixer, Mamba2Shape
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAMES = Mamba2Fields(
    heads="num_heads",
    head_dim="head_dim",
    groups="n_groups",
    d_state="state_size",
    width="conv_kernel",
    chunk_size="chunk_size",
    conv_bias="use_conv_bias",
    proj_bias="use_bias",
    expand="expand",
)


def _shape(fields: Fields) -> Mamba2Shape:
    eps = fields.number("layer_norm_epsilon", 1e-5)
    return Mamba2Shape.read(fields, fields.integer("hidden_size"), eps, _NAMES)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(*SIZES, "num_heads", "state_size")
    fields.only("hidden_act", "silu", "the convolution is built on it")
    layers = ((Mixer.MAMBA2,),) * fields.integer("num_hidden_layers")
    shape = _shape(fields)
    return model_config(
        "mamba2", fields, folder, dtypes, layers, shape.state, chunk_size=shape.chunk_size
    )


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    shape = _shape(Fields(config.raw, "config.json"))
    blocks = []
    for index in range(len(config.layers)):
        layer = scope.at(f"backbone.layers.{index}")
        mixer = Mamba2Mixer(layer.at("mixer"), shape, index)
        blocks.append(residual(layer, "norm", shape.hidden, shape.norm_eps, mixer))
    return decoder(config, scope, blocks, shape.norm_eps, "backbone.embeddings", "backbone.norm_f")


FAMILY = Family("mamba2", "Mamba2ForCausalLM", _read, _build, "Mamba-2")
