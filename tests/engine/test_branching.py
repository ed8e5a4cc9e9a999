"""A long prefix that several requests share, over real models: who hits it first, and the tokens.

257 tokens: one past the grid, so that the branch lies inside a page and a chunk.
"""

import random
from pathlib import Path

import pytest
from engine.engines import assert_clean, greedy
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

SHARED, DEPTH = 257, 256
STEPS = 24
Prompt = tuple[int, ...]

pytestmark = pytest.mark.parametrize("name", ["granite_dense_rope", "granite_moe_nope"])


@pytest.fixture
def folder(oracle: Oracle, name: str) -> Path:
    return oracle.checkpoint(name)


@pytest.fixture
def prompts(seeded: random.Random, name: str) -> list[Prompt]:
    """Three that part after SHARED tokens, each with a long way to go."""

    def drawn(length: int, first: int) -> Prompt:
        return (first, *(seeded.randrange(3, vocab) for _ in range(length - 1)))

    vocab = SPECS[name].config["vocab_size"]
    shared = drawn(SHARED, 3)
    return [(*shared, *drawn(seeded.randint(90, 200), 4 + n)) for n in range(3)]


def load(folder: Path, **options: object) -> Engine:
    config: dict[str, object] = {
        "page_size": 16,
        "max_running": 4,
        "max_model_len": 512,
        "memory_bytes": 1 << 28,
        "cached_snapshots": 80,
    }
    return Engine.load(EngineConfig(model=folder, **config | options))  # type: ignore[arg-type]


def hits(engine: Engine, prompts: list[Prompt], folder: Path, oracle: Oracle) -> list[int]:
    """Cached tokens of `prompts`, asked one after another; the answers are those of a cold run."""
    found = []
    for prompt in prompts:
        (output,) = engine.generate([prompt], greedy(STEPS))
        assert_clean(engine)
        oracle.assert_same_greedy(folder, prompt, output.token_ids)
        found.append(output.finished.usage.cached_tokens)
    return found


def test_with_several_snapshots_the_second_request_hits_right_before_the_branch(
    oracle: Oracle, folder: Path, prompts: list[Prompt]
) -> None:
    engine = load(folder, snapshots_per_prefill=32)
    assert hits(engine, prompts, folder, oracle) == [0, DEPTH, DEPTH]
    assert engine.counters.branch_points == 0


def test_with_one_the_second_leaves_it_for_the_third(
    oracle: Oracle, folder: Path, prompts: list[Prompt]
) -> None:
    engine = load(folder, snapshots_per_prefill=1)
    assert hits(engine, prompts, folder, oracle) == [0, 0, DEPTH]
    assert engine.counters.branch_points == 1


def test_where_the_cuts_are_the_same_a_resumed_run_is_exact_to_the_bit(
    folder: Path, prompts: list[Prompt]
) -> None:
    """One prompt at a time, a chunk a step: what a cold run does after the shared chunks is what
    the resumed one does, number by number."""
    grid = load(folder).plan.model_config.mamba_chunk_size
    warm = load(folder, chunked_prefill_size=grid, snapshots_per_prefill=8)
    cold = load(folder, chunked_prefill_size=grid, prefix_caching=False)
    for number, prompt in enumerate(prompts):
        (ours,) = warm.generate([prompt], greedy(STEPS, logprobs=8))
        (theirs,) = cold.generate([prompt], greedy(STEPS, logprobs=8))
        assert ours.finished.usage.cached_tokens == (DEPTH if number else 0)
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs
