"""Falcon-H1: in every layer Mamba-2 and attention side by side, then a gated MLP.

Its multipliers are constants beside linear maps, so they are folded into the weights as those are
loaded; only those of the embedding and of the logits are left.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.loading.multiplied import MultipliedWeights
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
from baton.engine.models.layers.mamba2 import Mamba2Fields, Mamba2Mixer, Mamba2Shape
from baton.engine.models.layers.mlp import GatedMlp
from baton.engine.models.layers.rope import read_rope
from baton.engine.models.scope import Scope
from baton.engine.settings.config import Mixer, ModelConfig

_NAMES = Mamba2Fields(inner="mamba_d_ssm", out_bias="projectors_bias")


def _sizes(fields: Fields) -> tuple[Mamba2Shape, AttentionSizes]:
    hidden = fields.integer("hidden_size")
    mamba = replace(
        Mamba2Shape.read(fields, hidden, fields.number("rms_norm_eps", 1e-5), _NAMES),
        normed=fields.flag("mamba_rms_norm", False),
        gate_last=fields.flag("mamba_rms_norm", False)
        and fields.flag("mamba_norm_before_gate", True),
    )
    return mamba, AttentionSizes.read(fields, hidden)


def _read(fields: Fields, folder: Path, dtypes: DTypes) -> ModelConfig:
    fields.require(*REQUIRED, "intermediate_size", "mamba_n_heads", "mamba_d_state")
    fields.only("hidden_act", "silu", "the feed-forward and the convolution are built on it")
    mamba, attention = _sizes(fields)
    layers = ((Mixer.MAMBA2, Mixer.ATTENTION),) * fields.integer("num_hidden_layers")
    return model_config(
        "falcon_h1", fields, folder, dtypes, layers, mamba.state, attention.cache, mamba.chunk_size
    )


def _numbers(fields: Fields, name: str, count: int) -> list[float]:
    """Read a list of `count` multipliers; ones where it is absent."""
    values = fields.raw.get(name)
    if values is None:
        return [1.0] * count
    if not isinstance(values, list) or len(values) != count:
        raise ConfigError(f"{fields.where}: {name} should be {count} numbers; got {values!r}")
    return [float(value) for value in values]


def _factors(fields: Fields, mamba: Mamba2Shape) -> dict[str, float | Tensor]:
    """Return what each tensor of a layer is multiplied by."""
    gate, down = _numbers(fields, "mlp_multipliers", 2)
    widths = torch.tensor([mamba.inner, *(b.places for b in mamba.conv_blocks), mamba.heads])
    rows = torch.tensor(_numbers(fields, "ssm_multipliers", 5)).repeat_interleave(widths)
    attention_in = fields.number("attention_in_multiplier", 1.0)
    key = fields.number("key_multiplier", 1.0)
    out = {
        "mamba.out_proj": fields.number("ssm_out_multiplier", 1.0),
        "self_attn.o_proj": fields.number("attention_out_multiplier", 1.0),
        "feed_forward.gate_proj": gate,
        "feed_forward.down_proj": down,
    }
    return {
        "mamba.in_proj.weight": rows * fields.number("ssm_in_multiplier", 1.0),
        "mamba.in_proj.bias": rows,
        "self_attn.q_proj.weight": attention_in,
        "self_attn.k_proj.weight": attention_in * key,
        "self_attn.k_proj.bias": key,
        "self_attn.v_proj.weight": attention_in,
        **{f"{name}.{part}": value for name, value in out.items() for part in ("weight", "bias")},
    }


def _build(config: ModelConfig, scope: Scope) -> Decoder:
    fields = Fields(config.raw, "config.json")
    mamba, attention = _sizes(fields)
    hidden, eps = config.hidden_size, mamba.norm_eps
    intermediate = fields.integer("intermediate_size")
    rope = scope.own(read_rope(fields, attention.head_dim, config.max_model_len))
    scope = replace(scope, source=MultipliedWeights(scope.source, _factors(fields, mamba)))
    blocks = []
    for index in range(len(config.layers)):
        layer = scope.at(f"model.layers.{index}")
        mixers = (
            Mamba2Mixer(layer.at("mamba"), mamba, index),
            Attention(layer.at("self_attn"), attention, index, rope),
        )
        mlp = GatedMlp(
            layer.at("feed_forward"),
            hidden,
            intermediate,
            gate_up={"gate_proj": (intermediate,), "up_proj": (intermediate,)},
            down="down_proj",
            bias=fields.flag("mlp_bias", False),
        )
        blocks.append(residual(layer, "input_layernorm", hidden, eps, *mixers))
        blocks.append(residual(layer, "pre_ff_layernorm", hidden, eps, mlp))
    return decoder(
        config,
        scope,
        blocks,
        eps,
        norm="model.final_layernorm",
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_divisor=1.0 / fields.number("lm_head_multiplier", 1.0),
    )


FAMILY = Family(
    "falcon_h1", "FalconH1ForCausalLM", _read, _build, "Mamba-2 and attention side by side; MLP"
)
