"""Llama, and what other families of plain attention share with it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from baton.engine.models.decoder import Decoder
from baton.engine.models.family import (
    REQUIRED,
    DTypes,
    Family,
    decoder,
    model_config,
    residual,
)
from baton.engine.models.fields import Fields
from baton.engine.models.layers.attention import Attention, AttentionSizes
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig


def read(family: str, fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    """Read the configuration of a model whose every layer is attention and a gated feed-forward."""
    fields.require(*REQUIRED, "intermediate_size")
    fields.only("hidden_act", "silu", "the feed-forward is built on it")
    attention = AttentionSizes.read(fields, fields.integer("hidden_size"))
    layers = ((Mixer.ATTENTION,),) * fields.integer("num_hidden_layers")
    return model_config(family, fields, folder, dtypes, layers, attention=attention.cache)


def build(
    config: ModelConfig,
    scope: Scope,
    head_norms: bool = False,
    scale: float | None = None,
    residual_multiplier: float = 1.0,
    embedding_multiplier: float = 1.0,
    logits_divisor: float = 1.0,
) -> Decoder:
    """Build a decoder of attention and gated feed-forwards.

    head_norms: q and k are normed a head. scale: of the scores; None: head_dim ** -0.5.
    """
    fields = Fields(config.raw, "config.json")
    hidden, intermediate = config.hidden_size, fields.integer("intermediate_size")
    eps = fields.number("rms_norm_eps", 1e-6)
    sizes = AttentionSizes.read(fields, hidden, scale)
    sizes = replace(sizes, norm_eps=eps if head_norms else None)
    rope = scope.own(read_rope(fields, sizes.head_dim, config.max_model_len))
    blocks = []
    for index in range(len(config.layers)):
        layer = scope.at(f"model.layers.{index}")
        attention = Attention(layer.at("self_attn"), sizes, index, rope)
        mlp = GatedMlp(
            layer.at("mlp"),
            hidden,
            intermediate,
            gate_up={"gate_proj": (intermediate,), "up_proj": (intermediate,)},
            down="down_proj",
            bias=fields.flag("mlp_bias", False),
        )
        for norm, branch in (("input_layernorm", attention), ("post_attention_layernorm", mlp)):
            blocks.append(
                residual(layer, norm, hidden, eps, branch, multiplier=residual_multiplier)
            )
    return decoder(
        config,
        scope,
        blocks,
        eps,
        embedding_multiplier=embedding_multiplier,
        logits_divisor=logits_divisor,
    )


FAMILY = Family("llama", "LlamaForCausalLM", partial(read, "llama"), build, "attention; MLP")
