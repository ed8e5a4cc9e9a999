"""Real, tiny checkpoints through the engine: the tokens are those of transformers."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import assert_clean, greedy, hand_over, run, tokens_of
from oracle.reference import LOGIT_BOUND, Oracle
from oracle.specs import DEEP, SPECS
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig

STEPS = 64
LENGTHS = (2, 16, 53, 101)
every_checkpoint = pytest.mark.parametrize("name", SPECS)


@pytest.fixture
def folder(oracle: Oracle, name: str) -> Path:
    return oracle.checkpoint(name)


@pytest.fixture
def prompts(seeded: random.Random, name: str) -> list[tuple[int, ...]]:
    vocab = SPECS[name].config["vocab_size"]
    return [tuple(seeded.randrange(3, vocab) for _ in range(length)) for length in LENGTHS]


def logprobs_of(following: Tensor, logits: Tensor) -> Tensor:
    """Return [n] log-probabilities of the tokens that follow. following: [n, 1]."""
    return logits[:-1].log_softmax(-1).gather(1, following)[:, 0]


def load(folder: Path, pages: int | None = None, **options: Any) -> Engine:
    """An engine over the checkpoint; `pages`: only so many pages to run in."""
    config = EngineConfig(
        model=folder,
        page_size=16,
        max_running=8,
        tickets=8,
        held_fraction=1.0,
        memory_bytes=1 << 30,
        cached_snapshots=4,
        snapshots_per_prefill=4,
    )
    engine = Engine.load(replace(config, **options))
    if pages is None:
        return engine
    plan = engine.plan
    used = plan.weight_bytes + plan.step_bytes + plan.tables.nbytes
    used += plan.slots * plan.slot_layout.slot_bytes
    # A page of latents is planned with its part of what a step gathers of them.
    gathered = plan.step.gathered_token_bytes * engine.config.page_size
    budget = used + (1 + pages) * (plan.page_layout.page_bytes + gathered)
    return Engine.load(replace(config, **options, memory_bytes=budget))


def answers(engine: Engine, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    outputs = engine.generate(prompts, greedy(STEPS))
    assert_clean(engine)
    return [list(output.token_ids) for output in outputs]


@pytest.mark.parametrize("name, chunk", [*product(SPECS, [64]), *product(DEEP, [16, 2048])])
def test_a_ragged_batch_gets_the_tokens_of_transformers(
    oracle: Oracle, folder: Path, prompts: list[tuple[int, ...]], chunk: int
) -> None:
    engine = load(folder, chunked_prefill_size=chunk, mamba_track_interval=16)
    oracle.assert_all_greedy(folder, prompts, answers(engine, prompts), STEPS)


@pytest.mark.parametrize("name", [name for name in DEEP if "kv" in SPECS[name].states])
def test_so_do_requests_that_are_preempted(
    oracle: Oracle, folder: Path, prompts: list[tuple[int, ...]]
) -> None:
    engine = load(folder, pages=13, chunked_prefill_size=32)
    for number, prompt in enumerate(prompts):
        engine.submit(RequestSpec(str(number), prompt, greedy(STEPS)))
    waiting: list[int] = [engine.status().waiting]
    events = run(engine, lambda _: waiting.append(engine.status().waiting))
    assert any(a < b for a, b in pairwise(waiting)), "the pool was to be too small"
    got = [tokens_of(events, str(number)) for number in range(len(prompts))]
    oracle.assert_all_greedy(folder, prompts, got, STEPS)


@every_checkpoint
def test_so_do_later_turns_that_resume_from_what_is_cached(
    oracle: Oracle, folder: Path, seeded: random.Random, name: str
) -> None:
    engine = load(folder, chunked_prefill_size=64, mamba_track_interval=16)
    vocab = SPECS[name].config["vocab_size"]
    turn = tuple(seeded.randrange(3, vocab) for _ in range(70))
    for _ in range(2):
        (output,) = engine.generate([turn], greedy(STEPS))
        oracle.assert_all_greedy(folder, [turn], [output.token_ids], STEPS)
        question = tuple(seeded.randrange(3, vocab) for _ in range(9))
        turn = (*turn, *output.token_ids, *question)
    assert engine.counters.state_hit_tokens >= 64
    assert_clean(engine)


@every_checkpoint
def test_so_do_requests_that_are_handed_over(
    oracle: Oracle, folder: Path, prompts: list[tuple[int, ...]]
) -> None:
    source, target = load(folder, chunked_prefill_size=64), load(folder)
    specs = [
        RequestSpec(str(number), prompt, greedy(STEPS), hold=True)
        for number, prompt in enumerate(prompts)
    ]
    for spec in specs:
        source.submit(spec)
    events: list[Event] = run(source)
    for spec in specs:
        hand_over(source, target, spec, tuple(tokens_of(events, spec.request_id)))
        events += target.step()
    events += run(target)
    got = [tokens_of(events, spec.request_id) for spec in specs]
    oracle.assert_all_greedy(folder, prompts, got, STEPS)


@every_checkpoint
def test_prompt_scores_are_those_of_transformers(
    oracle: Oracle, folder: Path, prompts: list[tuple[int, ...]]
) -> None:
    engine = load(folder, chunked_prefill_size=32)
    outputs = engine.generate(prompts, greedy(0, prompt_logprobs_start=1))
    for prompt, output in zip(prompts, outputs, strict=True):
        got = torch.tensor([entry.logprob for entry in output.prompt_logprobs])
        following = torch.tensor(prompt[1:])[:, None]
        oracle.assert_same_logits(
            folder,
            prompt,
            got,
            bound=2 * LOGIT_BOUND,
            of=partial(logprobs_of, following),
        )


@pytest.mark.parametrize("name", DEEP)
def test_loading_tells_how_far_it_is_and_takes_its_share_of_memory(folder: Path) -> None:
    told: list[tuple[str, float]] = []
    config = EngineConfig(model=folder, memory_fraction=0.01)
    engine = Engine.load(config, lambda what, done: told.append((what, done)))
    assert [done for _, done in told] == sorted(done for _, done in told)
    assert told[-1] == ("weights", 1.0)
    assert engine.plan.budget_bytes < engine.plan.available_bytes * 0.011
