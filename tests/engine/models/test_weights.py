"""Loading tensors: one file or shards, mapped or converted, and every fault named."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.errors import WeightsError
from baton.engine.assembly.loader import load_model
from baton.engine.collectives.comm import Shard, SingleComm
from baton.engine.loading.weight_file import WeightFile
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import DummyWeights, Shape
from baton.engine.models.layers.moe import router_weight
from baton.engine.models.scope import Scope
from baton.engine.models.tally import Tally
from baton.engine.settings.choices import LoadFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.linear import packs
from baton.kernels.torch_kernels import TORCH

TINY: dict[str, Any] = {
    **GRANITE_SMALL,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "shared_intermediate_size": 16,
    "max_position_embeddings": 64,
}
PROMPT = [5, 17, 300, 4, 511]


class Held(DummyWeights):
    """One matrix, whatever is asked for."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        return self.matrix


@pytest.mark.parametrize("exact", [True, False])
def test_a_gpu_keeps_a_router_in_the_models_dtype_where_that_has_its_values(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = torch.randn(4, 8)
    matrix = matrix.bfloat16().float() if exact else matrix
    cpu = torch.device("cpu")
    scope = Scope(Held(matrix), torch.bfloat16, cpu, Shard(), SingleComm())
    wide = router_weight(scope, 4, 8)
    assert isinstance(wide, Tensor) and wide.dtype is torch.float32
    monkeypatch.setattr(Scope, "product", lambda *_, **__: matrix)
    other = replace(scope, tally=Tally(nbytes=matrix.nbytes))
    object.__setattr__(other, "device", torch.device("cuda"))
    kept = router_weight(other, 4, 8)
    assert isinstance(kept, Tensor) and torch.equal(kept.float(), matrix)
    assert kept.dtype is (torch.bfloat16 if exact else torch.float32)
    assert other.tally.nbytes == kept.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_chosen_by_float32_logits(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 8).to(dtype), torch.randn(4, 8).to(dtype)
    logits = TORCH.router_logits(x, weight)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, x.float() @ weight.float().T)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", TINY, seed=random.randrange(1 << 30))


def logits(folder: Path, **options: Any) -> torch.Tensor:
    driver = StepDriver(load_model(EngineConfig(model=folder, **options)))
    return driver.prefill(driver.start(PROMPT))


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of a one-file checkpoint."""
    tensors = {**load_file(folder / "model.safetensors"), **change}
    kept = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def load_error(folder: Path) -> str:
    with pytest.raises(WeightsError) as raised:
        load_model(EngineConfig(model=folder))
    return str(raised.value)


def test_shards_hold_the_same_model_as_one_file(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole", TINY, seed=3)
    shards = write_checkpoint(tmp_path / "shards", TINY, seed=3, shard_bytes=20_000)
    assert len(list(shards.glob("*.safetensors"))) > 3
    torch.testing.assert_close(logits(shards), logits(whole), rtol=0, atol=0)


def test_tensors_used_as_they_lie_are_mapped_from_the_file(folder: Path) -> None:
    file = WeightFile(folder / "model.safetensors")
    name = "model.layers.0.mamba.in_proj.weight"
    mapped = file.tensor(name)
    assert mapped.data_ptr() == file.tensor(name).data_ptr()
    wanted = load_file(folder / "model.safetensors")[name]
    assert torch.equal(mapped, wanted)
    file.release(name)
    assert torch.equal(mapped, wanted)


def test_progress_ends_at_the_whole(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model(EngineConfig(model=folder), lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    tensors = load_file(folder / "model.safetensors")
    assert seen[-1] == (seen[-1][1], sum(tensor.nbytes for tensor in tensors.values()))


def test_the_weights_that_a_model_counts_are_those_it_holds(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors").values()
    full = load_model(EngineConfig(model=folder))
    packed = packs(full.kernels.native, torch.float32)
    assert full.weight_bytes == sum(t.nbytes for t in tensors) + packed * 12 * 32 * 4
    half = load_model(EngineConfig(model=folder, dtype=torch.bfloat16))
    # Vectors and the convolutions' taps stay as they were; matrices are rounded, and where they are
    # packed, the 148 rows of in_proj become 160.
    kept = sum(t.nbytes for t in tensors if t.dim() != 2)
    rounded = sum(t.nbytes for t in tensors if t.dim() == 2) // 2
    packed = packs(half.kernels.native, torch.bfloat16)
    assert half.weight_bytes == kept + rounded + packed * 12 * 32 * 2


def test_weights_convert_to_the_type_that_is_asked_for(folder: Path) -> None:
    half = write_checkpoint(folder.parent / "half", TINY, dtype=torch.bfloat16, seed=5)
    same = write_checkpoint(folder.parent / "same", TINY, seed=5)
    rounded = load_file(half / "model.safetensors")
    rewrite(same, {name: tensor.float() for name, tensor in rounded.items()})
    torch.testing.assert_close(logits(half), logits(same), rtol=0, atol=0)


def test_dummy_weights_need_no_files_and_repeat(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    first = logits(tmp_path, load_format=LoadFormat.DUMMY)
    assert first.isfinite().all()
    assert first.std() > 0.1
    torch.testing.assert_close(logits(tmp_path, load_format=LoadFormat.DUMMY), first)


def test_missing_extra_and_misshapen_tensors_are_named_together(folder: Path) -> None:
    rewrite(
        folder,
        {
            "model.norm.weight": None,
            "model.layers.1.self_attn.k_proj.weight": None,
            "model.layers.7.mamba.D": torch.zeros(4),
            "model.layers.0.mamba.conv1d.weight": torch.zeros(80, 4),
        },
    )
    said = load_error(folder)
    assert "missing (2): model.layers.1.self_attn.k_proj.weight, model.norm.weight" in said
    assert "not part of the model (1): model.layers.7.mamba.D" in said
    assert "model.layers.0.mamba.conv1d.weight is [80, 4], expected [80, 1, 4]" in said


@pytest.mark.parametrize("keep", [0, 7, 100, 5_000, -1])
def test_a_file_cut_short_is_an_error(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "cut short" in load_error(folder)


def test_a_file_of_another_format_is_an_error(folder: Path) -> None:
    header = b"not json"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "not a safetensors file" in load_error(folder)


def test_a_header_that_contradicts_itself_is_an_error(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (folder / "model.safetensors").write_bytes(content)
    assert "tensor a" in load_error(folder)


def test_a_name_that_comes_twice_is_an_error(folder: Path) -> None:
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    header = f'{{"a": {entry}, "b": {entry}, "a": {entry}}}'.encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(content)
    assert "names more than once: a. Each tensor has one place" in load_error(folder)


def test_a_type_that_we_do_not_read_is_named(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0")
    assert "F4" in load_error(folder)


def test_a_folder_without_weights_says_what_it_should_hold(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "expected model.safetensors" in load_error(folder)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TINY, shard_bytes=20_000)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in load_error(folder)


def test_an_index_that_promises_too_much_is_an_error(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TINY, shard_bytes=20_000)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    assert "model.extra" in load_error(folder)
    path.write_text("{}")
    assert "weight_map" in load_error(folder)
