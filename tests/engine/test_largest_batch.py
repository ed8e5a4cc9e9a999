"""The largest batch of each model on a GPU of 80 GB, by the memory plan alone."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.bench.gpu.models import GRANITE_SMALL, NEMOTRON_9B, write_config
from baton.core.errors import ConfigError
from baton.engine.assembly import loader
from baton.engine.assembly.loader import planned_memory
from baton.engine.engine import Engine
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig

GPU_BYTES = 80 * 10**9
_PERIOD = ["linear_attention"] * 3 + ["full_attention"]
GRANITE_TINY = {
    **GRANITE_SMALL,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "mamba_n_heads": 48,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
}
QWEN_9B = {
    "model_type": "qwen3_5_text",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "layer_types": _PERIOD * 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 12288,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "eos_token_id": 2,
}
QWEN_27B = {
    **QWEN_9B,
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "layer_types": _PERIOD * 16,
    "num_attention_heads": 24,
    "intermediate_size": 17408,
    "linear_num_value_heads": 48,
}
FALCON_34B = {
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
    "vocab_size": 261120,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
# Before: with a track slot for each request, and without memory for graphs, parts of attention and
# libraries on the device.
TABLE = [
    # model, bf16 GB, fraction, before, largest
    ("Granite-4.0-H-Tiny", GRANITE_TINY, 13.9, 0.8, 410, 705),
    ("Nemotron-Nano-9B-v2", NEMOTRON_9B, 17.8, 0.8, 146, 254),
    ("Qwen3.5-9B", QWEN_9B, 18.0, 0.8, 390, 590),
    ("Qwen3.5-27B", QWEN_27B, 53.9, 0.8, 23, 34),
    ("Qwen3.5-27B", QWEN_27B, 53.9, 0.95, 61, 98),
    ("Granite-4.0-H-Small", GRANITE_SMALL, 64.4, 0.95, 30, 48),
    ("Falcon-H1-34B", FALCON_34B, 67.4, 0.95, 9, 13),
]


def options(path: Path, **more: Any) -> EngineConfig:
    given = {"dtype": torch.bfloat16, "device": "cuda", "page_size": 64, **more}
    return EngineConfig(model=path, **given)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has GPU_BYTES free."""
    monkeypatch.setattr(loader, "available_memory", lambda device: GPU_BYTES)
    monkeypatch.setattr(loader, "card_memory", lambda device: GPU_BYTES)


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("name, config, gigabytes, fraction, before, largest", TABLE)
def test_the_largest_batch_on_80_gb(
    tmp_path: Path,
    name: str,
    config: dict[str, Any],
    gigabytes: float,
    fraction: float,
    before: int,
    largest: int,
) -> None:
    path = write_config(tmp_path / "model", config, small=False)
    with pytest.raises(ConfigError) as refused:
        planned_memory(options(path, memory_fraction=fraction, max_running=5000))
    found = re.search(r"largest max_running that fits is (\d+)", str(refused.value))
    assert found is not None, refused.value
    print(f"{name}, {fraction:.0%} of 80 GB: {before} requests before, {found[1]} now")
    assert int(found[1]) == largest > 1.4 * before
    plan = planned_memory(options(path, memory_fraction=fraction, max_running=largest))
    assert round(plan.weight_bytes / 1e9, 1) == gigabytes


@pytest.mark.usefixtures("free")
def test_a_gpu_too_small_is_named_before_a_weight_is_read(tmp_path: Path) -> None:
    """The folder has no weights at all."""
    path = write_config(tmp_path / "model", GRANITE_SMALL, small=False)
    with pytest.raises(ConfigError, match=r"not even one request fits"):
        Engine.load(options(path, memory_fraction=0.8))
    with pytest.raises(ConfigError, match=r"memory_bytes is 93.13 GiB, but cuda has 74.51 GiB"):
        Engine.load(options(path, memory_bytes=100 * 10**9))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model", NEMOTRON_9B, small=False)
    with pytest.raises(ConfigError, match="device is cuda:0, but torch finds no GPU"):
        Engine.load(options(path))


@pytest.mark.parametrize(("vocabulary", "least", "most"), [(True, 0.5, 0.51), (False, 0.56, 0.58)])
def test_int8_weights_are_planned_as_they_are_kept(
    tmp_path: Path, vocabulary: bool, least: float, most: float
) -> None:
    path = write_config(tmp_path / "model", NEMOTRON_9B, small=False)
    whole = options(path, device="cpu", memory_bytes=200 * 10**9)
    rounded = replace(whole, weight_format=WeightFormat.INT8, round_vocabulary=vocabulary)
    sizes = [planned_memory(each).weight_bytes for each in (whole, rounded)]
    assert least < sizes[1] / sizes[0] < most


@pytest.mark.usefixtures("free")
def test_budget_and_requests_are_decided_before_weights_are_read(tmp_path: Path) -> None:
    """Captures are sized by them, and less memory is free afterwards."""
    path = write_config(tmp_path / "model", GRANITE_SMALL, small=False)
    config = loader.with_memory(options(path))
    plan = planned_memory(options(path))
    assert config.max_running == plan.max_running < 128
    assert config.memory_bytes == plan.budget_bytes - plan.overhead_bytes
    again = planned_memory(config)
    assert (again.slots, again.pages) == (plan.slots, plan.pages)
    on_cpu = options(path, device="cpu")
    assert loader.with_memory(on_cpu) is on_cpu


def test_a_worker_beside_another_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "available_memory", lambda device: GPU_BYTES // 2)
    monkeypatch.setattr(loader, "card_memory", lambda device: GPU_BYTES)
    path = write_config(tmp_path / "model", NEMOTRON_9B, small=False)
    told = "other processes use 37.25 GiB of the 74.51 GiB of cuda"
    loader.with_memory(options(path))
    assert told in caplog.text
    caplog.clear()
    loader.with_memory(options(path, memory_fraction=0.45))
    assert "other processes" not in caplog.text
    with pytest.raises(ConfigError, match=told):
        planned_memory(options(path, memory_bytes=50 * 10**9))
