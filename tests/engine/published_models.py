"""Sizes of published models, by name, as their config.json gives them; of all positions those that
the tests use."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from baton.bench.gpu.models import GRANITE_SMALL, KIMI_LINEAR, NEMOTRON_9B, QWEN3_NEXT
from baton.engine.assembly.loader import divided_model
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import ModelConfig

FALCON_34B: dict[str, Any] = {
    "model_type": "falcon_h1",
    "hidden_size": 5120,
    "num_hidden_layers": 72,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 21504,
    "mamba_d_ssm": 4096,
    "mamba_n_heads": 32,
    "mamba_d_head": 128,
    "mamba_n_groups": 2,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 128,
    "mamba_rms_norm": False,
    "vocab_size": 261120,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
_QWEN3_5: dict[str, Any] = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
_LINEAR_LAYERS = ["linear_attention"] * 3 + ["full_attention"]
QWEN3_5_9B: dict[str, Any] = {
    **_QWEN3_5,
    "model_type": "qwen3_5_text",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "layer_types": _LINEAR_LAYERS * 8,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
}
QWEN3_5_27B: dict[str, Any] = {
    **_QWEN3_5,
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "layer_types": _LINEAR_LAYERS * 16,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
}
_QWEN3_5_MOE: dict[str, Any] = {
    **_QWEN3_5,
    "model_type": "qwen3_5_moe_text",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 64,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
}
# Its published 122.11e9 weights are those of these numbers of heads, and of no others.
QWEN3_5_122B: dict[str, Any] = {
    **_QWEN3_5_MOE,
    "hidden_size": 3072,
    "num_hidden_layers": 48,
    "layer_types": _LINEAR_LAYERS * 12,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
QWEN3_5_397B: dict[str, Any] = {
    **_QWEN3_5_MOE,
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "layer_types": _LINEAR_LAYERS * 15,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
_POSITIONS = {"max_position_embeddings": 8192}  # tables of rotary positions take time to make
PUBLISHED: dict[str, dict[str, Any]] = {
    "Nemotron-Nano-9B-v2": {**NEMOTRON_9B, **_POSITIONS},
    "Granite-4.0-H-Small": {**GRANITE_SMALL, **_POSITIONS},
    "Falcon-H1-34B": {**FALCON_34B, **_POSITIONS},
    "Kimi-Linear-48B-A3B": {**KIMI_LINEAR, **_POSITIONS},
    "Qwen3-Next-80B-A3B": {**QWEN3_NEXT, **_POSITIONS},
    "Qwen3.5-9B": {**QWEN3_5_9B, **_POSITIONS},
    "Qwen3.5-27B": {**QWEN3_5_27B, **_POSITIONS},
    "Qwen3.5-122B-A10B": {**QWEN3_5_122B, **_POSITIONS},
    "Qwen3.5-397B-A17B": {**QWEN3_5_397B, **_POSITIONS},
    "DeepSeek-V3": {**DEEPSEEK_V3, **_POSITIONS},
}
_HUB = "https://huggingface.co"
SOURCES = {
    "Nemotron-Nano-9B-v2": f"{_HUB}/nvidia/NVIDIA-Nemotron-Nano-9B-v2/blob/main/config.json",
    "Granite-4.0-H-Small": f"{_HUB}/ibm-granite/granite-4.0-h-small/blob/main/config.json",
    "Falcon-H1-34B": f"{_HUB}/docs/transformers/model_doc/falcon_h1",
    "Kimi-Linear-48B-A3B": f"{_HUB}/moonshotai/Kimi-Linear-48B-A3B-Instruct/blob/main/config.json",
    "Qwen3-Next-80B-A3B": f"{_HUB}/Qwen/Qwen3-Next-80B-A3B-Instruct/blob/main/config.json",
    "Qwen3.5-9B": f"{_HUB}/Qwen/Qwen3.5-9B/blob/main/config.json",
    "Qwen3.5-27B": f"{_HUB}/Qwen/Qwen3.5-27B/blob/main/config.json",
    "Qwen3.5-122B-A10B": f"{_HUB}/Qwen/Qwen3.5-122B-A10B/blob/main/config.json",
    "Qwen3.5-397B-A17B": f"{_HUB}/Qwen/Qwen3.5-397B-A17B/blob/main/config.json",
}
"""The published page of each. On 26 November 2026 the numbers here were compared with those that
others quote of these pages: layers and their kinds, heads, widths, experts."""


@cache
def divided(name: str, ranks: int) -> tuple[ModelConfig, int]:
    """Return what one of so many ranks runs of a model, and the bytes of its weights in bfloat16.

    Composing a model of hundreds of layers takes long, so it is done once. Raises ConfigError.
    """
    with TemporaryDirectory() as parent:
        folder = Path(parent, name)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(PUBLISHED[name]))
        part = divided_model(read_config(folder, torch.bfloat16, torch.float32), ranks)
    return part.config, part.weight_bytes
