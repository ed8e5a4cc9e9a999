"""LFM2: short convolutions and attention with normed heads, each followed by a gated MLP."""

from dataclasses import replace
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
from baton.engine.models.layers.attention import Attention, AttentionNames, AttentionSizes
from baton.engine.models.layers.base import Layer
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.layers.short_conv import ShortConv, ShortConvShape
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAMES = AttentionNames(out="out_proj", q_norm="q_layernorm", k_norm="k_layernorm")
_THETA = 1_000_000.0  # of the rotary positions, where the config names none


def _sizes(fields: Fields) -> tuple[ShortConvShape, AttentionSizes]:
    hidden = fields.integer("hidden_size")
    width = fields.integer("conv_L_cache", 3, minimum=2)
    conv = ShortConvShape(hidden, width, fields.flag("conv_bias", False))
    attention = AttentionSizes.read(fields, hidden)
    return conv, replace(attention, norm_eps=fields.number("norm_eps", 1e-5))


def _layer_types(fields: Fields) -> tuple[str, ...]:
    """Read the layers' types, by name, or (before transformers 5) by the attention layers'
    places.
    """
    if fields.has("layer_types"):
        return fields.texts("layer_types")
    attentions = fields.integers("full_attn_idxs")
    layers = range(fields.integer("num_hidden_layers"))
    return tuple("full_attention" if layer in attentions else "conv" for layer in layers)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(*REQUIRED)
    conv, attention = _sizes(fields)
    layers = layer_mixers(fields, _layer_types(fields))
    return model_config("lfm2", fields, folder, dtypes, layers, conv.state, attention.cache)


def _intermediate(fields: Fields) -> int:
    """Return the channels of the feed-forward: two thirds of what the config says, scaled and
    rounded up, unless it says that they are what it says.
    """
    width = fields.integer("block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = fields.integer("block_multiple_of", 256)
    return -(-width // multiple) * multiple


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    conv, attention = _sizes(fields)
    hidden, eps, width = config.hidden_size, fields.number("norm_eps", 1e-5), _intermediate(fields)
    rope = scope.own(read_rope(fields, attention.head_dim, config.max_model_len, theta=_THETA))
    blocks = []
    for index, mixer, place in placed(config):
        layer = scope.at(f"model.layers.{index}")
        mix: Layer
        if mixer is Mixer.SHORT_CONV:
            mix = ShortConv(layer.at("conv"), conv, place)
        else:
            mix = Attention(layer.at("self_attn"), attention, place, rope, _NAMES)
        mlp = GatedMlp(
            layer.at("feed_forward"), hidden, width, {"w1": (width,), "w3": (width,)}, "w2"
        )
        blocks.append(residual(layer, "operator_norm", hidden, eps, mix))
        blocks.append(residual(layer, "ffn_norm", hidden, eps, mlp))
    tied = fields.flag("tie_embedding", True)
    return decoder(config, scope, blocks, eps, norm="model.embedding_norm", tied=tied)


FAMILY = Family("lfm2", "Lfm2ForCausalLM", _read, _build, "short convolution, attention; MLP")
