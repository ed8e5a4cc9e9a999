"""The configuration with a layer of multi-token prediction, and which are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from baton.bench.checkpoints import GRANITE_SMALL
from baton.core.errors import ConfigError, WeightsError
from baton.engine.assembly.loader import check_weights, declared_weights, open_checkpoint
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import ModelConfig
from baton.engine.step.recurrent_index import plan_recurrent
from baton.kernels.torch_kernels import TORCH

QWEN: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}


def read(folder: Path, fields: dict[str, Any], mtp: bool = True) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return read_config(folder, torch.float32, torch.float32, mtp=mtp)


def test_the_layer_adds_one_cache_a_page_and_one_hidden_state_a_slot(tmp_path: Path) -> None:
    plain, config = read(tmp_path, QWEN, mtp=False), read(tmp_path, QWEN)
    assert config.attention == (*plain.attention, plain.attention[-1])
    assert config.recurrent[:-1] == plain.recurrent
    assert config.recurrent[-1].conv == (64, 1)
    assert (config.recurrent[-1].ssm, config.recurrent[-1].kept) == (None, 64)
    assert replace(config, mtp=False, attention=(), recurrent=()) == replace(
        plain, attention=(), recurrent=()
    )
    pages = [PageLayout(c.attention, 16, torch.float32) for c in (plain, config)]
    slots = [SlotLayout(c.recurrent, torch.float32, torch.float32) for c in (plain, config)]
    assert pages[1].components[: len(pages[0].components)] == pages[0].components
    assert slots[1].components[: len(slots[0].components)] == slots[0].components
    assert slots[1].state_bytes - slots[0].state_bytes == 64 * 4


def test_every_rank_has_the_whole_hidden_state(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN)
    for rank in range(2):
        part = config.part(rank, 2)
        assert part.recurrent[-1] == config.recurrent[-1]
        assert part.recurrent[0].conv[0] == config.recurrent[0].conv[0] // 2
    whole = SlotLayout(config.recurrent, torch.float32, torch.float32)
    assert whole.components[-1].blocks == ()


@pytest.mark.parametrize("count", [0, 2])
def test_other_numbers_of_layers_are_refused_by_name(tmp_path: Path, count: int) -> None:
    fields = {**QWEN, "num_nextn_predict_layers": count}
    with pytest.raises(ConfigError, match=f"num_nextn_predict_layers is {count}.* one layer"):
        read(tmp_path, fields)
    assert not read(tmp_path, fields, mtp=False).mtp


def test_a_family_without_the_layer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prediction of granitemoehybrid models is not supported"):
        read(tmp_path, GRANITE_SMALL)


DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 40,
    "num_nextn_predict_layers": 1,
}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 320,
    "max_position_embeddings": 1024,
    "hidden_size": 64,
    "hybrid_override_pattern": "M*-M",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "num_nextn_predict_layers": 1,
}


def test_a_model_without_recurrent_layers_has_a_slot_for_the_hidden_state(tmp_path: Path) -> None:
    config = read(tmp_path, DEEPSEEK)
    assert [shape.conv for shape in config.recurrent] == [(64, 1)]
    assert len(config.attention) == 4
    index = plan_recurrent(config, TORCH, (0, 5), (0,), None).on(torch.device("cpu"))
    assert index.shift is not None
    assert (index.conv, index.mamba2, index.delta) == (None, None, None)
    names = declared_weights(config).shapes.keys()
    layer = {name.removeprefix("model.layers.3.") for name in names if ".3." in name}
    assert {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"} <= layer
    assert not {"shared_head.head.weight", "embed_tokens.weight"} & layer
    assert not read(tmp_path, DEEPSEEK, mtp=False).recurrent


@pytest.mark.parametrize("pattern", ["*", "*-", "*--"])
def test_nemotrons_layer_is_attention_and_what_follows_it(tmp_path: Path, pattern: str) -> None:
    config = read(tmp_path, {**NEMOTRON, "mtp_hybrid_override_pattern": pattern})
    names = {name for name in declared_weights(config).shapes if name.startswith("mtp.")}
    assert f"mtp.layers.{len(pattern) - 1}.final_layernorm.weight" in names
    assert {int(name.split(".")[2]) for name in names} == set(range(len(pattern)))


@pytest.mark.parametrize("pattern", ["-*", "*M", "**"])
def test_other_orders_are_refused_by_name(tmp_path: Path, pattern: str) -> None:
    config = read(tmp_path, {**NEMOTRON, "mtp_hybrid_override_pattern": pattern})
    with pytest.raises(ConfigError, match=r"the MTP layer is .*; expected attention, then"):
        declared_weights(config)


def test_a_layer_with_an_embedding_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    config = read(tmp_path, {**QWEN, "mtp_use_dedicated_embeddings": True})
    with pytest.raises(ConfigError, match="mtp_use_dedicated_embeddings is True"):
        declared_weights(config)


def test_tensors_of_the_layer_are_needed_where_it_runs_and_ignored_elsewhere(
    tmp_path: Path,
) -> None:
    plain, config = read(tmp_path, QWEN, mtp=False), read(tmp_path, QWEN)
    own, needed = declared_weights(plain).shapes, declared_weights(config).shapes
    added = needed.keys() - own.keys()
    assert {name.partition(".")[0] for name in added} == {"mtp"}
    tensors = {name: torch.zeros(shape) for name, shape in needed.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert check_weights(plain, open_checkpoint(plain)).keys() == own.keys()
    assert check_weights(config, open_checkpoint(config)).keys() == needed.keys()
    del tensors["mtp.fc.weight"]
    save_file(tensors | {"mtp.other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing \(1\): mtp.fc.weight.* mtp.other"):
        check_weights(config, open_checkpoint(config))
    check_weights(plain, open_checkpoint(plain))


def test_steps_plan_the_shift_beside_the_mixers(tmp_path: Path) -> None:
    def built(mtp: bool) -> tuple[bool, bool]:
        plan = plan_recurrent(read(tmp_path, QWEN, mtp=mtp), TORCH, (0, 5, 9), (0, 64), None)
        index = plan.on(torch.device("cpu"))
        return index.delta is not None, index.shift is not None

    assert built(mtp=False) == (True, False)
    assert built(mtp=True) == (True, True)
