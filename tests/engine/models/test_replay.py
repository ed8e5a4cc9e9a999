"""Native and replayed decode steps say what torch's say."""

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle.decided import decided
from oracle.reference import Oracle
from oracle.specs import SPECS
from step_driver import Row, StepDriver

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.models.decoder import Decoder
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.settings.config import EngineConfig
from baton.kernels.dispatch import KernelChoice
from baton.kernels.native.library import load

TINY = {
    **GRANITE_SMALL,
    "hidden_size": 48,
    "mamba_d_head": 12,
    "mamba_n_heads": 8,
    "mamba_d_state": 20,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 32,
    "num_attention_heads": 6,
    "shared_intermediate_size": 40,
    "position_embedding_type": "rope",
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 0.5,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}


@pytest.fixture(autouse=True)
def native_library() -> None:
    if load() is None:
        pytest.skip("no C++ compiler")


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(params=[{}, EXPERTS], ids=["dense", "experts"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = {**TINY, "hidden_size": 64, "mamba_d_head": 16, **request.param}
    return write_checkpoint(tmp_path / "model", config)


def prompts(rng: random.Random, count: int, vocab: int = 512) -> list[list[int]]:
    return [[rng.randrange(3, vocab) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


def decode(driver: StepDriver, rows: list[Row], tokens: list[list[int]]) -> torch.Tensor:
    """Teacher-forced: logits [steps, rows, vocab]."""
    steps = []
    for step in tokens:
        for row, token in zip(rows, step, strict=True):
            row.tokens.append(token)
        steps.append(torch.cat([logits.clone() for logits in driver.step(decode=rows)]))
    return torch.stack(steps)


def decode_logits(config: EngineConfig, seed: int, vocab: int = 512) -> torch.Tensor:
    """[steps, rows, vocab] float32, after ragged prompts."""
    rng = random.Random(seed)
    driver = StepDriver(load_model(config))
    rows = [driver.start(prompt) for prompt in prompts(rng, 5, vocab)]
    driver.step(prefill=[(row, len(row.tokens)) for row in rows])
    return decode(driver, rows, [[rng.randrange(3, vocab) for _ in rows] for _ in range(40)])


def decided_logits(config: EngineConfig, rng: random.Random) -> tuple[int, torch.Tensor]:
    """A seed, and its `decode_logits`, without nearly tied experts: of those, rounding takes one
    here and another one there. config: of torch's kernels, whose choices can be seen."""

    def run() -> tuple[int, torch.Tensor]:
        seed = rng.randrange(1 << 30)
        return seed, decode_logits(config, seed)

    return decided(run)


@pytest.fixture
def many_threads() -> Iterator[None]:
    """More than there are cores: some come to an operation when it is long done."""
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


def test_threads_that_come_late_change_nothing(
    oracle: Oracle, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    folder, seed = oracle.checkpoint("kimi_moe"), rng.randrange(1 << 30)
    config = EngineConfig(model=folder)
    alone = decode_logits(config, seed, vocab=SPECS["kimi_moe"].config["vocab_size"])
    request.getfixturevalue("many_threads")
    many = decode_logits(config, seed, vocab=SPECS["kimi_moe"].config["vocab_size"])
    assert torch.equal(alone, many)


def test_decode_logits_are_those_of_torch(folder: Path, rng: random.Random) -> None:
    seed, plain = decided_logits(EngineConfig(model=folder, kernels=KernelChoice.TORCH), rng)
    native = decode_logits(EngineConfig(model=folder), seed)
    scale = float(plain.std())
    torch.testing.assert_close(native, plain, atol=3e-5 * scale, rtol=0)


def test_bfloat16_is_nearer_to_the_exact_model_than_torch_is(
    tmp_path: Path, rng: random.Random
) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY, dtype=torch.bfloat16)
    seed = rng.randrange(1 << 30)
    exact = EngineConfig(model=folder, kernels=KernelChoice.TORCH)
    wanted = decode_logits(exact, seed)
    native, plain = (
        (decode_logits(replace(exact, dtype=torch.bfloat16, kernels=choice), seed) - wanted).std()
        for choice in KernelChoice
    )
    print(f"error {native:.1e}, torch's {plain:.1e}, logits {wanted.std():.1e}")
    assert native <= plain and native < 0.03 * wanted.std()


@pytest.mark.parametrize("name", SPECS)
@torch.inference_mode()  # as the runner does it
def test_decode_of_every_family_is_replayed_bit_for_bit(
    oracle: Oracle, name: str, rng: random.Random
) -> None:
    model = load_model(EngineConfig(model=oracle.checkpoint(name)))
    assert isinstance(model, ReplayedModel)
    vocab = model.config.vocab_size
    starts = prompts(rng, 6, vocab)
    forced = [[rng.randrange(3, vocab) for _ in starts] for _ in range(18)]
    found = []
    for each in (model, model._model):
        driver = StepDriver(each)
        rows = [driver.start(prompt) for prompt in starts]
        driver.step(prefill=[(row, len(row.tokens)) for row in rows])
        # Batches of several sizes, and rows that cross into new pages.
        found.append([decode(driver, rows[:n], [s[:n] for s in forced]) for n in (6, 1, 3, 6)])
        found[-1] += driver.pools()
    assert model._recorded
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", SPECS)
@torch.inference_mode()
def test_a_replayed_step_writes_other_slots_than_it_reads(
    oracle: Oracle, name: str, rng: random.Random
) -> None:
    """Rows that are tracked do so, and rows after them. What is read stays as it is."""
    model = load_model(EngineConfig(model=oracle.checkpoint(name)))
    assert isinstance(model, ReplayedModel)
    vocab = model.config.vocab_size
    starts = [[rng.randrange(3, vocab) for _ in range(32)] for _ in range(3)]
    forced = [[rng.randrange(3, vocab) for _ in starts] for _ in range(3)]
    found = []
    for each in (model, model._model):
        driver = StepDriver(each)
        sources = [driver.start(prompt) for prompt in starts]
        driver.step(prefill=[(row, len(row.tokens)) for row in sources])
        before = driver.states.storage[[row.slot for row in sources]].clone()
        tracked = [driver.branch(row, ()) for row in sources]
        assert all(row.read_slot != row.slot for row in tracked)
        found.append([decode(driver, tracked, forced), *driver.pools()])
        assert torch.equal(driver.states.storage[[row.slot for row in sources]], before)
    assert model._recorded
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_row_decodes_to_the_same_bits_in_every_batch(tmp_path: Path, rng: random.Random) -> None:
    model = load_model(EngineConfig(model=write_checkpoint(tmp_path / "model", TINY)))
    starts = prompts(rng, 7)
    forced = [[rng.randrange(3, 512) for _ in starts] for _ in range(10)]

    def logits(count: int) -> torch.Tensor:
        driver = StepDriver(model)
        rows = [driver.start(prompt) for prompt in starts]
        for row in rows:
            driver.step(prefill=[(row, len(row.tokens))])
        return decode(driver, rows[:count], [step[:count] for step in forced])

    whole = logits(7)
    for count in (1, 2, 5):
        assert torch.equal(logits(count), whole[:, :count])


def test_a_model_that_cannot_be_recorded_runs_as_it_is(tmp_path: Path, rng: random.Random) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY)
    model = load_model(EngineConfig(model=folder))
    assert isinstance(model, ReplayedModel)
    assert isinstance(model._model, Decoder)
    block: Any = model._model.blocks[0]
    blocks: Any = (lambda x, embedded, step: block(x, embedded, step) * 1.0,)
    plain = ReplayedModel(replace(model._model, blocks=blocks), model._native)
    driver = StepDriver(plain)
    rows = [driver.start(prompt) for prompt in prompts(rng, 2)]
    driver.greedy(rows, driver.step(prefill=[(row, len(row.tokens)) for row in rows]), 4)
    assert not plain._recorded and not plain._recordable


_FIRST_STEP = """
import sys
import torch
from baton.kernels.elementwise import add_scaled_native
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native

native, x = Native(load()), torch.zeros(3, 12)
recording, _ = native.record(lambda: add_scaled_native(native, x, x.view(3, 12), 1.0))
recording.run()
print("torch._dynamo" in sys.modules)
"""


def test_recording_a_step_does_not_import_a_compiler() -> None:
    """It took seconds with the interpreter lock held, in the first step of every worker."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_STEP], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_engine_answers_alike_with_native_kernels_and_without(
    tmp_path: Path, rng: random.Random
) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY)
    asked = prompts(rng, 7)
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=rng.randrange(1, 40), ignore_eos=True, logprobs=2
        )
        for _ in asked
    ]
    config = EngineConfig(
        model=folder, max_running=4, chunked_prefill_size=32, page_size=16, memory_bytes=1 << 28
    )
    native, plain = (
        Engine.load(replace(config, kernels=choice)).generate(asked, params)
        for choice in KernelChoice
    )
    for mine, theirs in zip(native, plain, strict=True):
        for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
            if one.token_id != other.token_id:  # only at a near tie; then the rest may differ
                best, second = other.top_logprobs
                assert best - second < 1e-4
                break
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
