"""The tiny checkpoints that parity is measured on: at least two shapes of every family."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spec:
    """One checkpoint. `config` is passed to the family's transformers config class."""

    name: str
    model_type: str
    config: dict[str, Any] = field(hash=False)
    final_norm: str = "model.norm.weight"  # the tensor that logits are scaled by
    dense: bool = True  # no routing: bf16 claims are made on these alone


_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mamba_expand": 2,
}
_GRANITE: dict[str, Any] = {
    **_COMMON,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "attention_multiplier": 0.3,
}

_ALL = (
    Spec(
        "granite_dense_nope",
        "granitemoehybrid",
        {
            **_GRANITE,
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "position_embedding_type": None,
            "shared_intermediate_size": 96,
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_d_head": 16,
            "mamba_chunk_size": 32,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.8,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    Spec(
        "granite_dense_rope",
        "granitemoehybrid",
        {
            **_GRANITE,
            "hidden_size": 48,
            "num_hidden_layers": 5,
            "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba"],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "position_embedding_type": "rope",
            "rope_theta": 5000.0,
            "shared_intermediate_size": 80,
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_d_head": 16,
            "mamba_chunk_size": 16,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.9,
            "tie_word_embeddings": False,
        },
    ),
    Spec(
        "granite_moe_nope",
        "granitemoehybrid",
        {
            **_GRANITE,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "position_embedding_type": None,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "shared_intermediate_size": 48,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_d_head": 16,
            "mamba_chunk_size": 32,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.8,
            "tie_word_embeddings": True,
        },
        dense=False,
    ),
    Spec(
        "granite_moe_rope",
        "granitemoehybrid",
        {
            **_GRANITE,
            "hidden_size": 80,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "position_embedding_type": "rope",
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 40,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 5,
            "mamba_n_groups": 5,
            "mamba_d_state": 12,
            "mamba_d_head": 32,
            "mamba_chunk_size": 16,
            "embedding_multiplier": 2.0,
            "tie_word_embeddings": False,
        },
        dense=False,
    ),
    Spec(
        "bamba_grouped",
        "bamba",
        {
            **_COMMON,
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "attn_layer_indices": [1, 3],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_d_head": 16,
            "mamba_chunk_size": 32,
            "tie_word_embeddings": False,
        },
        final_norm="model.final_layernorm.weight",
    ),
    Spec(
        "bamba_odd",
        "bamba",
        {
            **_COMMON,
            "hidden_size": 60,
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "intermediate_size": 84,
            "mlp_bias": True,
            "attention_bias": True,
            "mamba_n_heads": 5,
            "mamba_n_groups": 1,
            "mamba_d_state": 20,
            "mamba_d_head": 24,
            "mamba_chunk_size": 16,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
        },
        final_norm="model.final_layernorm.weight",
    ),
)
SPECS = {spec.name: spec for spec in _ALL}
DENSE = [spec.name for spec in _ALL if spec.dense]
