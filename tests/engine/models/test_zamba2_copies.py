"""Copies of Zamba2's shared blocks: those of other values are used, as transformers uses them."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle.checkpoints import load_reference
from oracle.reference import LOGIT_BOUND, Oracle
from rank_models import say_together
from safetensors.torch import load_file, save_file
from step_driver import StepDriver
from torch import Tensor

from baton.core.errors import WeightsError
from baton.engine.assembly.loader import build_model, load_model, planned_memory
from baton.engine.collectives.comm import Shard
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.decoder import Decoder
from baton.engine.models.families.zamba2 import Hybrid, SharedBlock
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

NAME = "zamba2_adapted"  # blocks at layers 1 and 2; layer 4 uses the first one again
BLOCK, COPY = (f"model.layers.{layer}.shared_transformer." for layer in (1, 4))
ADAPTER = "self_attn.linear_v_adapter_list.2.0.weight"
PROMPT = [5, 17, 300, 4, 111]
Change = Callable[[str, Tensor], Tensor | None]


def copied(folder: Path, to: Path, change: Change) -> Path:
    """Copy a checkpoint, whose file then holds the first block twice. change: of a tensor's name in
    the block and its values, what the copy holds; None: no such tensor."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    assert not any(name.startswith(COPY) for name in tensors)
    for name in [name for name in tensors if name.startswith(BLOCK)]:
        inner = name.removeprefix(BLOCK)
        made = change(inner, tensors[name])
        if made is not None:
            tensors[COPY + inner] = made.clone()
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def same(name: str, values: Tensor) -> Tensor:
    return values


def all_other(name: str, values: Tensor) -> Tensor:
    return values.flip(0)


def other(*names: str) -> Change:
    return lambda name, values: values.flip(0) if name in names else values


def alone(changed: str) -> Change:
    """The copy holds that tensor and no other."""
    return lambda name, values: values.flip(0) if name == changed else None


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    driver = StepDriver(load_model(EngineConfig(model=folder, dtype=dtype)))
    return driver.prefill(driver.start(PROMPT))


def bytes_of(folder: Path) -> tuple[int, int]:
    """Return the bytes of weights, as loaded and as planned. Torch keeps matrices unpadded."""
    config = EngineConfig(model=folder, kernels=KernelChoice.TORCH, memory_bytes=1 << 30)
    return load_model(config).weight_bytes, planned_memory(config).weight_bytes


def last_block(model: Decoder) -> tuple[SharedBlock, SharedBlock]:
    """Return the blocks of layers 1 and 4."""
    first, last = model.blocks[1], model.blocks[4]
    assert isinstance(first, Hybrid) and isinstance(last, Hybrid)
    return first.shared, last.shared


@pytest.mark.parametrize(
    "change",
    [
        all_other,
        other("self_attn.k_proj.weight"),
        other("input_layernorm.weight", "feed_forward.down_proj.weight"),
        other(ADAPTER),
        alone("pre_ff_layernorm.weight"),
        alone(ADAPTER),
    ],
    ids=["all", "one of attention", "a norm and one of mlp", "adapter", "norm alone",
         "adapter alone"],
)  # fmt: skip
def test_a_copy_of_other_values_is_used_and_logged(
    oracle: Oracle, tmp_path: Path, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied(oracle.checkpoint(NAME), tmp_path / "changed", change)
    with caplog.at_level(logging.WARNING):
        found = logits(folder)
    (line,) = (r.getMessage() for r in caplog.records if COPY in r.getMessage())
    assert f"differs from {BLOCK}" in line and str(folder) in line
    with torch.no_grad():
        wanted = load_reference(folder)(torch.tensor([PROMPT])).logits[0]
    assert (found - wanted).abs().max() < LOGIT_BOUND
    assert (found - logits(oracle.checkpoint(NAME))).abs().max() > 100 * LOGIT_BOUND
    loaded, planned = bytes_of(folder)
    assert loaded == planned


def test_an_equal_copy_is_the_block(
    oracle: Oracle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = oracle.checkpoint(NAME)
    folder = copied(plain, tmp_path / "same", same)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(folder), logits(plain))
        assert bytes_of(folder) == bytes_of(plain)
    assert not [r for r in caplog.records if COPY in r.getMessage()]
    seen: list[tuple[int, int]] = []
    load_model(EngineConfig(model=folder), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_only_the_part_that_differs_is_kept_twice(oracle: Oracle, tmp_path: Path) -> None:
    folder = copied(oracle.checkpoint(NAME), tmp_path / "changed", other("self_attn.q_proj.weight"))
    own = load_file(folder / "model.safetensors")
    attention = sum(own[f"{BLOCK}self_attn.{n}_proj.weight"].nbytes for n in "qkvo")
    before, after = bytes_of(oracle.checkpoint(NAME)), bytes_of(folder)
    assert after[0] - before[0] == after[1] - before[1] == attention
    seen: list[tuple[int, int]] = []
    load_model(EngineConfig(model=folder), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_values_are_compared_before_they_are_rounded(oracle: Oracle, tmp_path: Path) -> None:
    def nearly(name: str, values: Tensor) -> Tensor:
        made = values.clone()
        if name == "feed_forward.down_proj.weight":
            made[-1, -1] *= 1 + 2**-20
        return made

    folder = copied(oracle.checkpoint(NAME), tmp_path / "near", nearly)
    config = EngineConfig(model=folder, dtype=torch.bfloat16, kernels=KernelChoice.TORCH)
    plain = EngineConfig(
        model=oracle.checkpoint(NAME), dtype=torch.bfloat16, kernels=KernelChoice.TORCH
    )
    assert load_model(config).weight_bytes > load_model(plain).weight_bytes


@pytest.mark.parametrize(("rows", "apart"), [(0, False), (1, True)], ids=["equal", "one row"])
def test_all_ranks_decide_alike(oracle: Oracle, tmp_path: Path, rows: int, apart: bool) -> None:
    """The rows of one rank alone may be equal: it is the whole tensors that are compared."""

    def last_rows(name: str, values: Tensor) -> Tensor:
        made = values.clone()
        if rows and name == "self_attn.q_proj.weight":
            made[-rows:] += 1
        return made

    folder = copied(oracle.checkpoint(NAME), tmp_path / "changed", last_rows)
    config = read_config(folder, torch.float32, torch.float32)
    sizes = set()
    for rank in range(2):
        part = build_model(config, Checkpoint(folder), torch.device("cpu"), Shard(rank, 2))
        first, last = last_block(part)
        assert (first.attention.out is not last.attention.out) == apart
        assert first.mlp.down is last.mlp.down and first.norm is last.norm
        sizes.add(part.weight_bytes)
    assert len(sizes) == 1
    with torch.no_grad():
        wanted = load_reference(folder)(torch.tensor([PROMPT])).logits[0]
    found = say_together(folder, PROMPT, (), 2)
    assert (found - wanted).abs().max() < LOGIT_BOUND


def test_a_copy_of_another_shape_is_named(oracle: Oracle, tmp_path: Path) -> None:
    def short(name: str, values: Tensor) -> Tensor:
        return values[:-1] if name == "self_attn.o_proj.weight" else values

    folder = copied(oracle.checkpoint(NAME), tmp_path / "short", short)
    with pytest.raises(WeightsError, match=rf"{COPY}self_attn.o_proj.weight is \[63, 128\]"):
        load_model(EngineConfig(model=folder))
