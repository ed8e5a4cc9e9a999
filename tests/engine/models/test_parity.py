"""Tests that our models agree with transformers, on tiny float32 checkpoints of every family."""

import random
from itertools import product

import pytest
import torch
from oracle.reference import Oracle
from oracle.specs import DEEP, SPECS
from step_driver import StepDriver
from torch import Tensor

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig
from baton.engine.step.model import Model

STEPS = 64
every_checkpoint = pytest.mark.parametrize("name", SPECS)


@pytest.fixture
def model(oracle: Oracle, name: str) -> Model:
    return load_model(EngineConfig(model=oracle.checkpoint(name)))


@pytest.fixture
def prompts(model: Model, name: str) -> list[list[int]]:
    """Ragged: shorter than the convolution, a kernel chunk exactly, several chunks and a bit."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    chunk = max(16, model.config.mamba_chunk_size)
    lengths = (2, chunk, 3 * chunk + 5, 77)
    return [[rng.randrange(3, SPECS[name].config["vocab_size"]) for _ in range(n)] for n in lengths]


@pytest.mark.parametrize(
    "name, chunk",
    [*product(SPECS, [None, 16]), *product(DEEP, [64, 1])],
)
def test_prompt_logits_in_chunks_of_any_size(
    oracle: Oracle, name: str, model: Model, prompts: list[list[int]], chunk: int | None
) -> None:
    driver = StepDriver(model)
    for prompt in prompts:
        got = driver.prefill(driver.start(prompt), chunk)
        oracle.assert_same_logits(oracle.checkpoint(name), prompt, got)


@every_checkpoint
def test_a_ragged_batch_continues_with_the_same_tokens(
    oracle: Oracle, name: str, model: Model, prompts: list[list[int]]
) -> None:
    driver = StepDriver(model)
    rows = [driver.start(prompt) for prompt in prompts]
    first = driver.step(prefill=[(row, len(row.tokens)) for row in rows])
    driver.greedy(rows, first, STEPS)
    for row, prompt in zip(rows, prompts, strict=True):
        oracle.assert_same_greedy(oracle.checkpoint(name), prompt, row.tokens[-STEPS:])


@every_checkpoint
def test_rows_that_decode_beside_a_prefill_say_the_same(
    oracle: Oracle, name: str, model: Model, prompts: list[list[int]]
) -> None:
    folder = oracle.checkpoint(name)
    driver = StepDriver(model)
    decoding = [driver.start(prompt) for prompt in prompts[:2]]
    for row in decoding:
        row.tokens.append(int(driver.prefill(row)[-1].argmax()))
    late = driver.start(prompts[2])
    fresh = driver.start(prompts[3])
    done: list[torch.Tensor] = []
    for size in (7, 16, 9):
        driver_prefill = [(late, size)] if late.computed else [(late, size), (fresh, 30)]
        *decoded, late_logits = driver.step(decoding, driver_prefill)[: len(decoding) + 1]
        done.append(late_logits)
        for row, logits in zip(decoding, decoded, strict=True):
            row.tokens.append(int(logits[-1].argmax()))
    done.append(driver.prefill(late))
    oracle.assert_same_logits(folder, late.tokens, torch.cat(done))
    oracle.assert_same_logits(folder, fresh.tokens, driver.prefill(fresh), first=30)
    for row, prompt in zip(decoding, prompts, strict=False):
        oracle.assert_same_greedy(folder, prompt, row.tokens[-4:])


@every_checkpoint
def test_logits_of_some_tokens_are_those_that_they_have_among_all(
    model: Model, prompts: list[list[int]]
) -> None:
    """Layers after the last that mixes tokens compute those alone; state is the same bits."""
    total = sum(len(prompt) for prompt in prompts)

    def run(wanted: list[int]) -> tuple[Tensor, Tensor]:
        driver = StepDriver(model, pages=64)
        rows = [driver.start(prompt) for prompt in prompts]
        batch = driver.batch([(row, len(row.tokens)) for row in rows], 0, wanted)
        logits = model.forward(batch, driver.states, driver.pages)
        return logits, driver.states.storage[[row.slot for row in rows]]

    every, state = run(list(range(total)))
    for wanted in ([0, 1, total // 2, total - 1], [total - 1], []):
        logits, same_state = run(wanted)
        assert logits.shape == (len(wanted), every.shape[1])
        torch.testing.assert_close(logits, every[wanted], rtol=0, atol=1e-4)
        assert torch.equal(same_state, state)
