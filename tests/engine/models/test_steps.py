"""Tests that a step touches only its rows' slots and pages, and never reads from the device."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from guards import NoHostReads
from oracle.decided import decided
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.engine.assembly.loader import load_model
from baton.engine.models.decoder import Block, Decoder
from baton.engine.models.step import Step
from baton.engine.settings.config import EngineConfig
from baton.engine.step.model import Model
from baton.kernels.dispatch import KernelChoice

MOE = {
    "hidden_size": 64,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "shared_intermediate_size": 32,
    "position_embedding_type": "rope",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(EngineConfig(model=write_checkpoint(folder, {**GRANITE_SMALL, **MOE})))


@pytest.fixture(scope="module")
def seen(model: Model) -> Model:
    """Return the model on torch's kernels, whose choices of experts can be seen."""
    folder = model.config.folder
    return load_model(EngineConfig(model=folder, kernels=KernelChoice.TORCH))


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(512) for _ in range(length)]


def _decided(
    seen: Model, rng: random.Random, trunk: int, *tails: int
) -> tuple[list[int], list[list[int]]]:
    """A prompt of `trunk` tokens and tails that go on from it, all without nearly tied experts."""

    def draw() -> tuple[list[int], list[list[int]]]:
        prompt = _prompt(rng, trunk)
        ends = [_prompt(rng, tail) for tail in tails]
        for end in ends or [[]]:
            driver = StepDriver(seen)
            driver.prefill(driver.start([*prompt, *end]))
        return prompt, ends

    return decided(draw)


def test_slots_and_pages_of_others_stay_as_they_were(model: Model, rng: random.Random) -> None:
    driver = StepDriver(model)
    rows = [driver.start(_prompt(rng, length)) for length in (3, 40, 70)]
    # Six more tokens fit in the pages that the rows have: none changes hands in between.
    logits = driver.step(prefill=[(row, len(row.tokens)) for row in rows])
    before = driver.unowned()
    driver.greedy(rows, logits, 6)
    for was, now in zip(before, driver.unowned(), strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0)
    for row in rows:
        assert not any(pool[row.slot].isnan().any() for pool in driver.states.conv)


def test_a_branch_reads_the_snapshot_and_leaves_it_whole(
    model: Model, seen: Model, rng: random.Random
) -> None:
    prompt, tails = _decided(seen, rng, 48, 20, 1)
    driver = StepDriver(model)
    trunk = driver.start(prompt)
    driver.prefill(trunk)
    kept = driver.states.storage[trunk.slot].clone()
    branches = [driver.branch(trunk, tail) for tail in tails]
    got = driver.step(prefill=[(row, len(tail)) for row, tail in zip(branches, tails, strict=True)])
    assert torch.equal(driver.states.storage[trunk.slot], kept)
    for row, tail, logits in zip(branches, tails, got, strict=True):
        alone = driver.prefill(driver.start(row.tokens))[-len(tail) :]
        torch.testing.assert_close(logits, alone, rtol=0, atol=1e-4)


def test_a_decoding_branch_reads_the_snapshot_too(
    model: Model, seen: Model, rng: random.Random
) -> None:
    prompt, (tail,) = _decided(seen, rng, 32, 1)
    driver = StepDriver(model)
    trunk = driver.start(prompt)
    driver.prefill(trunk)
    kept = driver.states.storage[trunk.slot].clone()
    branch = driver.branch(trunk, tail)
    (logits,) = driver.step(decode=[branch])
    assert torch.equal(driver.states.storage[trunk.slot], kept)
    alone = driver.prefill(driver.start(branch.tokens))[-1:]
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-4)


def test_a_row_that_begins_by_decoding_starts_from_nothing(
    model: Model, seen: Model, rng: random.Random
) -> None:
    begun, _ = _decided(seen, rng, 1)
    driver = StepDriver(model)
    other = driver.start(_prompt(rng, 16))
    other.tokens.append(int(driver.prefill(other)[-1].argmax()))
    fresh = driver.start(begun)
    _, logits = driver.step(decode=[other, fresh])
    alone = driver.prefill(driver.start(begun))
    torch.testing.assert_close(logits, alone, rtol=0, atol=1e-4)


def test_a_forward_never_reads_the_device(model: Model, rng: random.Random) -> None:
    driver = StepDriver(model)
    rows = [driver.start(_prompt(rng, length)) for length in (5, 40)]
    late = driver.start(_prompt(rng, 50))
    driver.prefill(rows[0])
    rows[0].tokens.append(1)
    inputs = driver.batch([(rows[0], 1), (rows[1], 40), (late, 20)], decode_rows=1)
    with NoHostReads():
        model.forward(inputs, driver.states, driver.pages)


def test_only_the_logits_asked_for_are_computed(
    model: Model, seen: Model, rng: random.Random
) -> None:
    prompt, _ = _decided(seen, rng, 30)
    driver = StepDriver(model)
    row = driver.start(prompt)
    whole = driver.prefill(driver.start(row.tokens))
    batch = driver.batch([(row, 30)], decode_rows=0, logit_tokens=[29, 4])
    logits = model.forward(batch, driver.states, driver.pages)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, whole[[29, 4]], rtol=0, atol=1e-5)


def test_a_step_tells_the_device_what_it_tells_the_host(model: Model, rng: random.Random) -> None:
    driver = StepDriver(model)
    rows = [driver.start(_prompt(rng, length)) for length in (9, 33, 50, 20)]
    driver.step(prefill=[(rows[0], 8), (rows[1], 32), (rows[2], 11)])
    batch = driver.batch([(rows[0], 1), (rows[1], 1), (rows[2], 30), (rows[3], 20)], 2)
    step = Step.plan(batch, driver.states, driver.pages)
    assert step.decode is not None
    assert step.prefill is not None
    assert step.decode.kv_lens_host == tuple(step.decode.kv_lens.tolist()) == (9, 33)
    assert step.prefill.kv_lens_host == tuple(step.prefill.kv_lens.tolist()) == (41, 20)
    ragged = step.prefill.rows
    assert ragged.cu_seqlens_host == tuple(ragged.cu_seqlens.tolist()) == (0, 30, 50)
    assert ragged.prefix_lens_host == (11, 0)
    assert ragged.has_initial.tolist() == [True, False]
    assert ragged.write_slots.tolist() == [row.slot for row in rows[2:]]


@dataclass(frozen=True)
class _Watched:
    """A block, and how many tokens it was given."""

    block: Block
    seen: list[int]

    @property
    def mixes(self) -> bool:
        return self.block.mixes

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor:
        self.seen.append(x.shape[0])
        return self.block(x, embedded, step)


def test_what_follows_the_last_mixer_sees_the_wanted_tokens_alone(rng, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**GRANITE_SMALL, **MOE})
    model = load_model(EngineConfig(model=folder, kernels=KernelChoice.TORCH))
    assert isinstance(model, Decoder)
    seen: list[int] = []
    watched = replace(model, blocks=tuple(_Watched(block, seen) for block in model.blocks))
    driver = StepDriver(watched)
    lengths = (40, 3)
    rows = [(driver.start(_prompt(rng, length)), length) for length in lengths]
    for wanted, last in (([39, 42], [2]), ([], [])):
        seen.clear()
        watched.forward(driver.batch(rows, 0, wanted), driver.states, driver.pages)
        assert seen == [sum(lengths)] * (len(model.blocks) - 1) + last
