"""Small models of every kind of layer, whose heads and states are as large as released ones'."""

DRAFTS = "num_nextn_predict_layers"
"""The field of models that are to draft by their layer of multi-token prediction."""
_EVERY: dict[str, object] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size": 256,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "intermediate_size": 256,
}
_EXPERTS: dict[str, object] = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
}
KINDS: dict[str, dict[str, object]] = {
    "Mamba-2, attention": {
        **_EVERY,
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-*-",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 16,
        "mamba_head_dim": 80,
        "n_groups": 2,
        "ssm_state_size": 128,
        "chunk_size": 128,
        "conv_kernel": 4,
    },
    "gated delta rule, attention, experts, multi-token prediction": {
        **_EVERY,
        **_EXPERTS,
        "model_type": "qwen3_next",
        DRAFTS: 1,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "shared_expert_intermediate_size": 128,
    },
    "Kimi delta attention, latent attention, experts": {
        **_EVERY,
        **_EXPERTS,
        "model_type": "kimi_linear",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "linear_num_heads": 4,
        "linear_head_dim": 128,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_shared_experts": 1,
    },
    "gated convolution, attention": {
        **_EVERY,
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
"""config.json of each, by its kinds of layers."""
