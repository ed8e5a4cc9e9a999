"""Bamba: Mamba-2 or attention, then a gated MLP; half of each attention head is rotated."""

from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.family import (
    REQUIRED,
    DTypes,
    Family,
    decoder,
    layer_mixers,
    model_config,
    placed,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.mamba2 import Mamba2Mixer, Mamba2Shape
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAME = "bamba"
_ROTARY_FRACTION = 0.5  # of every Bamba; older config.json files do not say it


def _sizes(fields: Fields) -> tuple[Mamba2Shape, AttentionSizes]:
    hidden = fields.integer("hidden_size")
    eps = fields.number("rms_norm_eps", 1e-5)
    return Mamba2Shape.read(fields, hidden, eps), AttentionSizes.read(fields, hidden)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(
        *REQUIRED,
        "intermediate_size",
        "mamba_n_heads",
        "mamba_d_state",
    )
    fields.only("hidden_act", "silu", "the feed-forward and the convolution are built on it")
    mamba, attention = _sizes(fields)
    attentions = set(fields.integers("attn_layer_indices", ()))
    names = tuple(
        "attention" if index in attentions else "mamba"
        for index in range(fields.integer("num_hidden_layers"))
    )
    layers = layer_mixers(fields, names)
    return model_config(
        _NAME, fields, folder, dtypes, layers, mamba.state, attention.cache, mamba.chunk_size
    )


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    mamba, attention = _sizes(fields)
    hidden, eps = config.hidden_size, mamba.norm_eps
    intermediate = fields.integer("intermediate_size")
    mlp_bias = fields.flag("mlp_bias", False)
    rope = scope.own(read_rope(fields, attention.head_dim, config.max_model_len, _ROTARY_FRACTION))

    blocks = []
    for index, mixer, place in placed(config):
        layer = scope.at(f"model.layers.{index}")
        mix: Layer
        if mixer is Mixer.MAMBA2:
            mix = Mamba2Mixer(layer.at("mamba"), mamba, place)
        else:
            mix = Attention(layer.at("self_attn"), attention, place, rope)
        mlp = GatedMlp(
            layer.at("feed_forward"),
            hidden,
            intermediate,
            gate_up={"gate_proj": (intermediate,), "up_proj": (intermediate,)},
            down="down_proj",
            bias=mlp_bias,
        )
        blocks.append(residual(layer, "input_layernorm", hidden, eps, mix))
        blocks.append(residual(layer, "pre_ff_layernorm", hidden, eps, mlp))
    return decoder(config, scope, blocks, eps, norm="model.final_layernorm")


FAMILY = Family(_NAME, "BambaForCausalLM", _read, _build, "Mamba-2, attention; MLP")
