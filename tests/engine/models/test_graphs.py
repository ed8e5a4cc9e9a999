"""Captured decode steps, by batch size: what they compute is what the model does."""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rerun_capture import RerunCapture
from step_driver import Row, StepDriver

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.engine.assembly.loader import build_model
from baton.engine.layout.batch_sizes import batch_sizes
from baton.engine.layout.owners import Owner
from baton.engine.loading.weights import DummyWeights
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.family_table import read_config
from baton.engine.replay.graphed_model import CudaCapture, GraphedModel
from baton.kernels.base import Kernels
from baton.kernels.dispatch import KernelChoice, select

CPU = torch.device("cpu")
TINY = {
    **GRANITE_SMALL,
    "hidden_size": 64,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 40,
}


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def native() -> Kernels:
    """The only kernels here whose decode does not look at the host's lengths."""
    kernels = select(CPU, torch.float32, KernelChoice.AUTO)
    if kernels.native is None:
        pytest.skip("no C++ compiler")
    return kernels


def drivers(
    tmp_path: Path, kernels: Kernels, max_rows: int
) -> tuple[StepDriver, StepDriver, RerunCapture]:
    """The model as it is, and captured."""
    folder = write_checkpoint(tmp_path / "model", TINY)
    config = read_config(folder, torch.float32, torch.float32)
    plain = build_model(config, DummyWeights(), CPU, kernels=kernels)
    capture = RerunCapture()
    captured = GraphedModel(plain, max_rows, capture)
    return StepDriver(plain), StepDriver(captured), capture


def start(driver: StepDriver, prompts: list[list[int]]) -> list[Row]:
    rows = [driver.start(prompt) for prompt in prompts]
    driver.step(prefill=[(row, len(row.tokens)) for row in rows])
    return rows


class FakeGraph:
    def replay(self) -> None: ...


def test_captures_begin_new_memory_once_the_last_of_their_graphs_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[tuple[int, int]] = []

    @contextmanager
    def graph(_: FakeGraph, pool: tuple[int, int], capture_error_mode: str) -> Iterator[None]:
        pools.append(pool)
        yield

    handles = zip(itertools.repeat(0), itertools.count(1))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    capture = CudaCapture()
    kept = [capture(lambda: torch.zeros(1)) for _ in range(2)]
    kept.pop()
    kept.append(capture(lambda: torch.zeros(1)))
    assert len(set(pools)) == 1
    kept.clear()
    capture(lambda: torch.zeros(1))
    assert pools[3] not in pools[:3]


def test_rows_come_and_go_and_every_step_is_the_models_own(
    tmp_path: Path, native: Kernels, rng: random.Random
) -> None:
    """Slots of rows that have gone are taken by others, and a batch that shrinks leaves nothing of
    the larger one behind."""
    plain, captured, capture = drivers(tmp_path, native, 6)
    prompts = [[rng.randrange(3, 512) for _ in range(rng.randrange(1, 40))] for _ in range(6)]
    pairs = list(zip(start(plain, prompts), start(captured, prompts), strict=True))
    for size in (3, 6, 1, 5, 2):
        chosen = rng.sample(pairs, size)
        for row, other in chosen:
            row.tokens.append(rng.randrange(3, 512))
            other.tokens.append(row.tokens[-1])
        expected = torch.cat(plain.step(decode=[row for row, _ in chosen]))
        pools: list[StatePool | PagePool] = [captured.states, captured.pages]
        before = [pool.storage.clone() for pool in pools]
        logits = torch.cat(captured.step(decode=[row for _, row in chosen]))
        assert torch.equal(logits, expected)
        for was, pool in zip(before, pools, strict=True):
            free = [i for i in range(1, pool.ids.size) if pool.ids.owner(i) is Owner.FREE]
            assert torch.equal(pool.storage[free], was[free]), "a padding row wrote beside 0"
    assert capture.captures == 4 and capture.replays == 5  # sizes 1, 2, 4 and 6


def test_a_row_that_begins_with_its_decode_step_starts_from_nothing(
    tmp_path: Path, native: Kernels
) -> None:
    """Its slot holds what was there before."""
    plain, captured, _ = drivers(tmp_path, native, 4)
    for driver in (plain, captured):
        for pool in driver.states.conv:
            pool.fill_(7.0)
    rows = [driver.start([9]) for driver in (plain, captured)]
    expected = plain.step(decode=[rows[0]])[0]
    assert torch.equal(captured.step(decode=[rows[1]])[0], expected)


def test_steps_with_prompts_and_batches_that_are_too_large_run_as_they_are(
    tmp_path: Path, native: Kernels, rng: random.Random
) -> None:
    plain, captured, capture = drivers(tmp_path, native, 2)
    prompts = [[rng.randrange(3, 512) for _ in range(5)] for _ in range(3)]
    rows, others = start(plain, prompts), start(captured, prompts)
    for row in (*rows, *others):
        row.tokens.append(11)
    expected = torch.cat(plain.step(decode=rows))
    assert torch.equal(torch.cat(captured.step(decode=others)), expected)
    assert capture.captures == 0


def test_every_size_can_be_captured_before_the_first_step(tmp_path: Path, native: Kernels) -> None:
    _, captured, capture = drivers(tmp_path, native, 6)
    model = captured.model
    assert isinstance(model, GraphedModel)
    model.capture(captured.states, captured.pages, captured.tables)
    assert capture.captures == len(batch_sizes(6)) == 4


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 40, 64, 100, 256, 1000])
def test_sizes_rise_to_the_largest_and_waste_little(most: int) -> None:
    sizes = batch_sizes(most)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == most
    for smaller, larger in pairwise(sizes):
        assert larger <= max(2 * smaller, smaller + 8, smaller * 5 // 4)
