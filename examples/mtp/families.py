"""The three models: configs as published ones spell them, and the names of their MTP tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp.language import END, IDS, VOCABULARY

HERE = Path(__file__).resolve().parent
LONGEST = 1024
"""Tokens of context that a server may give them. They are trained on texts of 192."""
_COMMON: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 96,
    "max_position_embeddings": LONGEST,
    "bos_token_id": None,
    "eos_token_id": IDS[END],
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class MtpFamily:
    """A family of models with a layer of multi-token prediction.

    That layer is made as a model of one layer, the donor: a decoder layer of the model's own kind,
    and a last norm.

    changed: fields of the donor's config that differ from the model's
    rename: the name in the checkpoint of a tensor of the donor; None for those that it lacks
    fuse, embedding_norm, hidden_norm: the names of what lies before the layer
    zero_centred: norms are stored as their distance from one
    body_steps: of training the model without its MTP layer
    """

    name: str
    config: dict[str, Any]
    changed: dict[str, Any]
    rename: Callable[[str], str | None]
    fuse: str
    embedding_norm: str
    hidden_norm: str
    eps: float
    zero_centred: bool = False
    body_steps: int = 300


def _qwen(name: str) -> str | None:
    if name == "model.norm.weight":
        return "mtp.norm.weight"
    inner = name.removeprefix("model.")
    return f"mtp.{inner}" if inner.startswith("layers.0.") else None


def _nemotron(name: str) -> str | None:
    inner = name.removeprefix("backbone.").removeprefix("model.")
    if inner == "norm_f.weight":
        return "mtp.layers.1.final_layernorm.weight"
    return f"mtp.{inner}" if inner.startswith("layers.") else None


_DEEPSEEK_LAYERS = 3


def _deepseek(name: str) -> str | None:
    prefix = f"model.layers.{_DEEPSEEK_LAYERS}."
    if name == "model.norm.weight":
        return f"{prefix}shared_head.norm.weight"
    inner = name.removeprefix("model.layers.0.")
    return prefix + inner if inner != name else None


QWEN3_NEXT = MtpFamily(
    "qwen3_next",
    {
        **_COMMON,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 192,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 24,
        "num_experts": 0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
    _qwen,
    "mtp.fc.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    eps=1e-5,
    zero_centred=True,
)
NEMOTRON_H = MtpFamily(
    "nemotron_h",
    {
        **_COMMON,
        "hybrid_override_pattern": "M-*-M",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
        "mamba_num_heads": 8,
        "mamba_head_dim": 24,
        "n_groups": 2,
        "ssm_state_size": 32,
        "chunk_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 128,
        "layer_norm_epsilon": 1e-5,
        "time_step_min": 1e-9,  # transformers clamps dt by it, at prefill alone
    },
    {"hybrid_override_pattern": "*E"},
    _nemotron,
    "mtp.layers.0.eh_proj.weight",
    "mtp.layers.0.enorm.weight",
    "mtp.layers.0.hnorm.weight",
    eps=1e-5,
)
DEEPSEEK_V3 = MtpFamily(
    "deepseek_v3",
    {
        **_COMMON,
        "num_hidden_layers": _DEEPSEEK_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 192,
        "q_lora_rank": None,
        "kv_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 24,
        "v_head_dim": 24,
        "first_k_dense_replace": _DEEPSEEK_LAYERS,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "moe_intermediate_size": 64,
        "rms_norm_eps": 1e-5,
        # Quick turns alone: attention must find the word before, as a recurrence does for others.
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    _deepseek,
    f"model.layers.{_DEEPSEEK_LAYERS}.eh_proj.weight",
    f"model.layers.{_DEEPSEEK_LAYERS}.enorm.weight",
    f"model.layers.{_DEEPSEEK_LAYERS}.hnorm.weight",
    eps=1e-5,
    body_steps=600,
)
FAMILIES = {family.name: family for family in (QWEN3_NEXT, NEMOTRON_H, DEEPSEEK_V3)}
