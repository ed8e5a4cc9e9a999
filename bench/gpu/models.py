"""Hybrids of the 9B class with random weights made on the device; only config.json is a file."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baton.engine.assembly.loader import declared_weights
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import DummyWeights, Shape
from baton.engine.settings.config import ModelConfig

_PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEMOTRON_9B: dict[str, Any] = {
    **_TOKENS,
    "model_type": "nemotron_h",
    "hidden_size": 4480,
    "num_hidden_layers": len(_PATTERN),
    "hybrid_override_pattern": _PATTERN,
    "intermediate_size": 15680,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "chunk_size": 128,
    "conv_kernel": 4,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}
_ATTENTION = (5, 15, 25, 35)
GRANITE_SMALL: dict[str, Any] = {
    **_TOKENS,
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if layer in _ATTENTION else "mamba" for layer in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_multiplier": 1 / 128,
    "position_embedding_type": "nope",
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
QWEN3_NEXT: dict[str, Any] = {
    **_TOKENS,
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}
_LATENT_LAYERS = (3, 7, 11, 15, 19, 23, 26)
KIMI_LINEAR: dict[str, Any] = {
    **_TOKENS,
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "layer_types": [
        "full_attention" if layer in _LATENT_LAYERS else "linear_attention" for layer in range(27)
    ],
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 9216,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "routed_scaling_factor": 2.446,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}
LFM2: dict[str, Any] = {
    **_TOKENS,
    "model_type": "lfm2",
    "hidden_size": 2048,
    "num_hidden_layers": 30,
    "layer_types": ["conv", "conv", "full_attention"] * 10,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 10752,
    "vocab_size": 65536,
    "max_position_embeddings": 128000,
}
# Two layers of full width, with few of its 256 experts, which would fill a card.
DEEPSEEK_V3: dict[str, Any] = {
    **_TOKENS,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_routed_experts": 32,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
MODELS = {
    "Nemotron-Nano-9B-v2": NEMOTRON_9B,
    "Granite-4.0-H-small": GRANITE_SMALL,
    "Qwen3-Next-80B-A3B": QWEN3_NEXT,
    "Kimi-Linear-48B-A3B": KIMI_LINEAR,
}
# A few layers of each kind at full size: a layer that waits does so every time.
FEW_LAYERS: tuple[dict[str, Any], ...] = (
    {**NEMOTRON_9B, "hybrid_override_pattern": "M-*-M-*-", "num_hidden_layers": 8},
    {
        **QWEN3_NEXT,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
    },
    {
        **KIMI_LINEAR,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
    },
    {**LFM2, "layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
)
MTP_LAYERS = (FEW_LAYERS[1], DEEPSEEK_V3)
"""Those with a layer of multi-token prediction."""
# Fields that make these architectures small enough for any machine.
_SMALL = {
    "hidden_size": 64,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_SMALL_OF: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "hybrid_override_pattern": "M-*-",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "chunk_size": 16,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "num_hidden_layers": 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
    },
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_hidden_layers": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "num_hidden_layers": 2,
        "intermediate_size": 96,
    },
}


def small_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model of the same architecture that any machine can run."""
    return {**config, **_SMALL, **_SMALL_OF[config["model_type"]]}


def write_config(folder: Path, config: dict[str, Any], small: bool) -> Path:
    """Write config.json to a new `folder`."""
    named = small_config(config) if small else config
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(named), encoding="utf-8")
    return folder


def with_layers(config: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the config of a model of the first `count` layers."""
    kinds: dict[str, Any] = {
        name: config[name][:count]
        for name in ("layer_types", "hybrid_override_pattern")
        if name in config
    }
    return {**config, **kinds, "num_hidden_layers": count}


class DeviceWeights:
    """Random tensors, made on the device in the model's dtype without a copy."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._small = DummyWeights()

    def holds(self, name: str) -> bool:
        return False

    def differs(self, name: str, other: str) -> bool:
        return False

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        if len(shape) < 2:
            return self._small.tensor(name, shape, part)
        values = part.of(torch.empty(shape, dtype=self._dtype, device=self._device))
        return values.normal_(std=1 / math.sqrt(shape[-1]))

    def release(self, name: str) -> None:
        """Do nothing: every tensor belongs to its caller."""


@dataclass(frozen=True)
class StepBytes:
    """The least number of bytes that a decode step must read and write."""

    dense: int  # weights that every step reads
    experts: int  # all routed experts
    share: float  # of them that one token is sent to
    state: int  # of one sequence, read and written
    kv: int  # of one token of one sequence

    @staticmethod
    def of(config: ModelConfig) -> "StepBytes":
        size = config.dtype.itemsize
        dense = experts = 0
        shapes = declared_weights(config).shapes
        for name, shape in shapes.items():
            routed = "experts." in name or ("block_sparse_moe." in name and len(shape) == 3)
            if routed and "shared" not in name:
                experts += size * math.prod(shape)
            elif not name.endswith(("embed_tokens.weight", "embeddings.weight")):
                dense += size * math.prod(shape)
        if "lm_head.weight" not in shapes:
            dense += size * config.vocab_size * config.hidden_size  # tied to the embedding
        raw = config.raw
        count = int(raw.get("num_local_experts") or raw.get("num_experts") or 1)
        state = sum(
            math.prod(layer.conv) * config.conv_dtype.itemsize
            + (math.prod(layer.ssm) * config.ssm_dtype.itemsize if layer.ssm else 0)
            for layer in config.recurrent
        )
        kv = sum(math.prod(shape) for layer in config.attention for shape in layer.tensors.values())
        share = int(raw.get("num_experts_per_tok") or 0) / count
        return StepBytes(dense, experts, share, 2 * state, kv * size)

    def at(self, rows: int, context: int) -> float:
        """Return the bytes of a step of `rows` sequences of `context` tokens.

        Experts are assumed to be chosen at random.
        """
        used = self.experts * (1 - (1 - self.share) ** rows)
        return self.dense + used + rows * (self.state + context * self.kv)
