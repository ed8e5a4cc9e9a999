"""Tests of DeepSeek's peculiarities: latent pages, layers that predict further tokens, refused
configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import ConfigError, WeightsError
from baton.engine.assembly.loader import declared_weights, load_model
from baton.engine.layout.layout import LatentShape, PageLayout
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
}


def test_a_token_is_cached_as_one_latent_a_layer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3))
    config = read_config(tmp_path, torch.bfloat16, torch.float32)
    assert config.attention == (LatentShape(16 + 4),) * 2
    assert PageLayout(config.attention, 16, config.dtype).token_bytes == 2 * 20 * 2


def test_layers_that_guess_further_tokens_are_ignored(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path, V3) / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "model.layers.2.eh_proj.weight": torch.zeros(2)}, file)
    load_model(EngineConfig(model=tmp_path))
    save_file({**tensors, "model.layers.1.eh_proj.weight": torch.zeros(2)}, file)
    with pytest.raises(WeightsError, match="not part of the model"):
        load_model(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
        ({"kv_lora_rank": None, "v_head_dim": None}, "lacks kv_lora_rank, v_head_dim"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid' works"),
        ({"n_group": 2, "topk_group": 1, "num_experts_per_tok": 3}, "3 a token"),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, "norm_topk_prob is True"),
        ({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}, "topk_method should be"),
    ],
)
def test_what_it_lacks_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**V3, **change}))
    with pytest.raises(ConfigError, match=said):
        declared_weights(read_config(tmp_path, torch.bfloat16, torch.float32))
