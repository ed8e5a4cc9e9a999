"""Sizes of published models, by name, as their config.json gives them; of all positions those that
the tests use."""

from typing import Any

from baton.bench.gpu.models import GRANITE_SMALL, KIMI_LINEAR, NEMOTRON_9B, QWEN3_NEXT_HALF

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
QWEN3_NEXT: dict[str, Any] = {
    **QWEN3_NEXT_HALF,
    "num_hidden_layers": 48,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
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
_POSITIONS = {"max_position_embeddings": 8192}  # tables of rotary positions take time to make
PUBLISHED: dict[str, dict[str, Any]] = {
    "Nemotron-Nano-9B-v2": {**NEMOTRON_9B, **_POSITIONS},
    "Granite-4.0-H-Small": {**GRANITE_SMALL, **_POSITIONS},
    "Falcon-H1-34B": {**FALCON_34B, **_POSITIONS},
    "Kimi-Linear-48B-A3B": {**KIMI_LINEAR, **_POSITIONS},
    "Qwen3-Next-80B-A3B": {**QWEN3_NEXT, **_POSITIONS},
    "DeepSeek-V3": {**DEEPSEEK_V3, **_POSITIONS},
}
