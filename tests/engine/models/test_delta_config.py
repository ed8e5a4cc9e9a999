"""Reading the config.json of models with delta nets, in every spelling."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model, declared_weights
from baton.engine.engine import Engine
from baton.engine.loading.weights import DummyWeights
from baton.engine.models.decoder import Residual
from baton.engine.models.family_table import read_config
from baton.engine.models.layers.attention import Attention
from baton.engine.settings.choices import LoadFormat
from baton.engine.settings.config import EngineConfig, Mixer, ModelConfig

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN: dict[str, Any] = {
    **COMMON,
    "model_type": "qwen3_next",
    "max_position_embeddings": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "head_dim": 16,
}
# By the names of the checkpoints that Moonshot AI publishes.
KIMI: dict[str, Any] = {
    **COMMON,
    "model_type": "kimi_linear",
    "num_key_value_heads": 4,
    "model_max_length": 256,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 8,
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 32,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_expert_group": 2,
    "topk_group": 1,
    "num_shared_experts": 2,
    "routed_scaling_factor": 2.446,
}


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return read_config(folder, torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    "spelling",
    [
        {},  # every fourth layer, where nothing is said
        {"full_attention_interval": 4},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ],
)
def test_every_fourth_layer_is_attention(tmp_path: Path, spelling: dict[str, Any]) -> None:
    config = read(tmp_path, {**QWEN, **spelling})
    assert config.layers == (*((Mixer.GATED_DELTA_NET,),) * 3, (Mixer.ATTENTION,))
    assert config.mamba_chunk_size == 64
    assert config.recurrent[0].conv == (2 * 2 * 8 + 6 * 12, 3)
    assert config.recurrent[0].ssm == (6, 8, 12)  # key channels, then value channels
    assert len(config.recurrent) == 3 and len(config.attention) == 1


@pytest.mark.parametrize(
    ("said", "rotated"),
    [
        ({}, 4),
        ({"partial_rotary_factor": 0.5}, 8),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, 8),
        ({"rope_parameters": {"mrope_section": [1, 1, 0], "mrope_interleaved": True}}, 4),
    ],
)
def test_a_part_of_each_head_is_rotated(tmp_path: Path, said: dict[str, Any], rotated: int) -> None:
    config = read(tmp_path, {**QWEN, **said})
    model = build_model(config, DummyWeights(), torch.device("cpu"))
    (attention,) = [
        layer
        for block in model.blocks
        if isinstance(block, Residual)
        for layer in block.branches
        if isinstance(layer, Attention)
    ]
    assert attention.rope is not None and attention.rope.shape == (128, rotated)


@pytest.mark.parametrize("fields", [QWEN, KIMI], ids=lambda fields: fields["model_type"])
def test_random_weights_answer(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    config = EngineConfig(model=tmp_path, load_format=LoadFormat.DUMMY, memory_bytes=1 << 28)
    (output,) = Engine.load(config).generate(
        [[5, 6, 7] * 30], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    )
    assert len(output.token_ids) == 5


def test_published_names_of_kimi_are_understood(tmp_path: Path) -> None:
    config = read(tmp_path, KIMI)
    assert config.layers == (*((Mixer.KDA,),) * 3, (Mixer.MLA,))
    assert config.max_model_len == 256
    assert config.recurrent[0].conv == (3 * 3 * 8, 3)
    assert config.recurrent[0].ssm == (3, 8, 8)
    shapes = declared_weights(config).shapes
    assert shapes["model.layers.0.self_attn.A_log"] == (1, 1, 3, 1)
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (96, 64)
    assert shapes["model.layers.1.block_sparse_moe.experts.7.w2.weight"] == (64, 32)
    assert shapes["model.layers.3.self_attn.kv_b_proj.weight"] == (4 * (8 + 12), 16)
    assert "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight" in shapes


@pytest.mark.parametrize(
    ("fields", "change", "said"),
    [
        (QWEN, {"linear_num_key_heads": 4}, r"linear_num_value_heads \(6\) .* \(4\)"),
        (QWEN, {"linear_key_head_dim": None}, "lacks linear_key_head_dim"),
        (QWEN, {"layer_types": ["mamba"] * 4}, "unknown layer types mamba; known are linear_"),
        (QWEN, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (KIMI, {"mla_use_nope": False}, "mla_use_nope is False"),
        (KIMI, {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        (KIMI, {"linear_attn_config": {}}, "lacks linear_head_dim, linear_num_heads"),
        (
            KIMI,
            {"num_experts_per_token": 5},
            "8 experts cannot be chosen from 1 of 2 groups",
        ),
    ],
)
def test_what_cannot_work_is_named(
    tmp_path: Path, fields: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        declared_weights(read(tmp_path, {**fields, **change}))
