"""Granite 4 hybrids: Mamba-2 or attention, then a shared MLP, with experts beside it or without.

Four multipliers: on the embedding, on both residual additions, on the attention scores (in place
of head_dim ** -0.5), and a divisor of the logits. Attention has rotary positions or none ("nope").
"""

from pathlib import Path

from baton.core.errors import ConfigError
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
from baton.engine.models.layers.moe import SoftmaxTopKMoe
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAME = "granitemoehybrid"


def _sizes(fields: Fields) -> tuple[Mamba2Shape, AttentionSizes]:
    hidden = fields.integer("hidden_size")
    eps = fields.number("rms_norm_eps", 1e-6)
    scale = fields.number("attention_multiplier", 1.0)
    return Mamba2Shape.read(fields, hidden, eps), AttentionSizes.read(fields, hidden, scale)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(
        *REQUIRED,
        "layer_types",
        "shared_intermediate_size",
        "num_local_experts",
        "mamba_n_heads",
        "mamba_d_state",
    )
    fields.only("hidden_act", "silu", "the feed-forward and the convolution are built on it")
    if fields.text("position_embedding_type", "nope") not in ("nope", "rope"):
        raise ConfigError(
            f'{fields.where}: position_embedding_type should be null, "nope" or "rope"; '
            f"got {fields.raw['position_embedding_type']!r}"
        )
    mamba, attention = _sizes(fields)
    layers = layer_mixers(fields, fields.texts("layer_types"))
    return model_config(
        _NAME, fields, folder, dtypes, layers, mamba.state, attention.cache, mamba.chunk_size
    )


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    mamba, attention = _sizes(fields)
    hidden, eps = config.hidden_size, mamba.norm_eps
    multiplier = fields.number("residual_multiplier", 1.0)
    rotary = fields.text("position_embedding_type", "nope") == "rope"
    rope = None
    if rotary:
        rope = scope.own(read_rope(fields, attention.head_dim, config.max_model_len))

    def feed_forward(layer: Scope) -> tuple[Layer, ...]:
        shared = fields.integer("shared_intermediate_size")
        mlp = GatedMlp(
            layer.at("shared_mlp"),
            hidden,
            shared,
            gate_up={"input_linear": (shared, shared)},
            down="output_linear",
        )
        experts = fields.integer("num_local_experts", minimum=0)
        if not experts:
            return (mlp,)
        moe = SoftmaxTopKMoe(
            layer.at("block_sparse_moe"),
            hidden,
            fields.integer("intermediate_size"),
            experts,
            fields.integer("num_experts_per_tok"),
            router="router.layer.weight",
            gate_up="input_linear.weight",
            down="output_linear.weight",
        )
        return (moe, mlp)

    blocks = []
    for index, mixer, place in placed(config):
        layer = scope.at(f"model.layers.{index}")
        mix: Layer
        if mixer is Mixer.MAMBA2:
            mix = Mamba2Mixer(layer.at("mamba"), mamba, place)
        else:
            mix = Attention(layer.at("self_attn"), attention, place, rope)
        for norm, branches in (
            ("input_layernorm", (mix,)),
            ("post_attention_layernorm", feed_forward(layer)),
        ):
            blocks.append(residual(layer, norm, hidden, eps, *branches, multiplier=multiplier))
    return decoder(
        config,
        scope,
        blocks,
        eps,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
    )


FAMILY = Family(
    _NAME, "GraniteMoeHybridForCausalLM", _read, _build, "Mamba-2, attention; MLP, experts"
)
