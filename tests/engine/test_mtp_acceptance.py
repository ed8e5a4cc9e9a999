"""Trained layers of multi-token prediction: most of their drafts are right, as many on every way to
a text, and fewer where one part of that way is broken.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from engine.engines import assert_clean, finish_of, greedy, hand_over, run, tokens_of
from mtp_models import TRAINED
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.models.layers.hidden_shift import HiddenShift
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.step import Step
from baton.engine.request.events import Event, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from mtp.language import HELD_OUT, loop, text

GRID = 64
PROMPT, TOKENS, NUMBER = 72, 72, 12
DRAFTS = 3
FIRST, THIRD = 0.8, 0.5  # share of drafts that are right, at depths 1 and 3

# The models whose drafts depend on single entries; those of nemotron_h hardly do.
by_each_entry = pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3"])

Drafts = dict[str, tuple[int, int, int]]
"""Steps with drafts, drafts, and right ones of each request."""


@pytest.fixture(params=TRAINED)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(family: str, **options: object) -> Engine:
    config = EngineConfig(
        model=TRAINED[family],
        dtype=torch.float32,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        speculative_num_draft_tokens=1 + DRAFTS,
        page_size=16,
        max_running=NUMBER,
        max_model_len=256,
        memory_bytes=1 << 28,
        mamba_track_interval=GRID,
        cached_snapshots=4 * NUMBER,
        tickets=NUMBER,
        held_fraction=1.0,
        canary=True,
    )
    return Engine.load(replace(config, **options))  # type: ignore[arg-type]


@cache
def specs() -> list[RequestSpec]:
    """Half of the prompts have a phrase across the first place of the grid, and begin it again: the
    entry there is the only one to tell what follows."""
    half = NUMBER // 2
    texts = [text(HELD_OUT + n, PROMPT) for n in range(half)]
    texts += [loop(HELD_OUT + n, GRID - 8, 10 + n % 5, PROMPT) for n in range(NUMBER - half)]
    return [RequestSpec(f"r{n}", each.ids, greedy(TOKENS)) for n, each in enumerate(texts)]


def answered(
    engine: Engine,
    asked: Sequence[RequestSpec],
    between: Callable[[list[Event]], None] | None = None,
) -> list[Event]:
    for spec in asked:
        engine.submit(spec)
    return run(engine, between)


def drafts_of(events: list[Event], asked: Sequence[RequestSpec]) -> Drafts:
    usages = {spec.request_id: finish_of(events, spec.request_id).usage.drafts for spec in asked}
    return {name: (u.verify_steps, u.proposed, u.accepted) for name, u in usages.items()}


def right(drafts: Drafts) -> int:
    return sum(accepted for _, _, accepted in drafts.values())


@cache
def cold(family: str) -> tuple[list[Event], Drafts]:
    """Each prompt in one chunk, and nothing cached."""
    engine = load(family, prefix_caching=False, chunked_prefill_size=PROMPT * NUMBER)
    events = answered(engine, specs())
    return events, drafts_of(events, specs())


def told(family: str, count: int) -> list[RequestSpec]:
    """Requests whose prompts end with the first `count` tokens of the cold answers."""
    events, _ = cold(family)
    return [
        replace(
            spec,
            request_id=f"{spec.request_id}-told",
            prompt_ids=(*spec.prompt_ids, *tokens_of(events, spec.request_id)[:count]),
            sampling=greedy(TOKENS - count),
        )
        for spec in specs()
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_most_drafts_are_right(family: str, dtype: torch.dtype) -> None:
    engine = load(family, dtype=dtype)
    answered(engine, specs())
    lengths = engine.counters.accepted_length_tokens
    shares = [sum(lengths[depth:]) / sum(lengths) for depth in (1, 2, 3)]
    assert shares[0] >= FIRST and shares[2] >= THIRD, shares


def test_as_many_are_right_behind_chunks(family: str) -> None:
    events = answered(load(family, chunked_prefill_size=2 * GRID), specs())
    assert drafts_of(events, specs()) == cold(family)[1]


def test_as_many_are_right_behind_a_cached_beginning(family: str) -> None:
    engine = load(family)
    begin_cached(engine)
    events = answered(engine, specs())
    assert engine.counters.state_hit_tokens >= NUMBER * GRID
    assert drafts_of(events, specs()) == cold(family)[1]


def begin_cached(engine: Engine) -> None:
    """Let the first GRID tokens of all prompts be cached."""
    answered(
        engine,
        [
            replace(spec, request_id=f"{spec.request_id}-begin", prompt_ids=spec.prompt_ids[:GRID])
            for spec in specs()
        ],
    )


def test_as_many_are_right_behind_a_cached_answer(family: str) -> None:
    """The pages and snapshots are those that steps with drafts have left."""
    asked = told(family, 2 * GRID + 4 - PROMPT)
    engine = load(family)
    answered(engine, specs())
    before = engine.counters.state_hit_tokens
    found = answered(engine, asked)
    assert engine.counters.state_hit_tokens - before >= NUMBER * 2 * GRID
    alone = answered(load(family, prefix_caching=False), asked)
    assert drafts_of(found, asked) == drafts_of(alone, asked)
    assert right(drafts_of(alone, asked))


def test_as_many_are_right_after_a_hand_off(family: str) -> None:
    assert drafts_of(handed_over(family), specs()) == cold(family)[1]


def handed_over(family: str, on_the_way: Callable[[Engine], None] | None = None) -> list[Event]:
    """Answers of an engine whose prompts another one has read. on_the_way: done to that one before
    the states leave it."""
    target = load(family)
    source = Engine.load(replace(target.config, chunked_prefill_size=GRID).for_prompts)
    held = [replace(spec, hold=True) for spec in specs()]
    first = answered(source, held)
    if on_the_way is not None:
        on_the_way(source)
    for spec in held:
        hand_over(source, target, spec, tuple(tokens_of(first, spec.request_id)))
    return run(target)


def test_as_many_are_right_after_a_migration(family: str) -> None:
    """A rank that reads the text again has the drafts of one to whom it is a prompt."""
    events, _ = cold(family)
    moved = [
        replace(spec, output_ids=tuple(tokens_of(events, spec.request_id)[:30])) for spec in specs()
    ]
    found = drafts_of(answered(load(family, chunked_prefill_size=2 * GRID), moved), moved)
    asked = told(family, 30)
    prompted = drafts_of(answered(load(family, prefix_caching=False), asked), asked)
    assert list(found.values()) == list(prompted.values())


def test_fewer_are_right_where_a_hand_off_loses_the_hidden_state(family: str) -> None:
    found = handed_over(family, lose_hidden)
    assert right(drafts_of(found, specs())) < right(cold(family)[1])


def lose_hidden(engine: Engine) -> None:
    """Give all slots the last hidden states of others."""
    hidden = engine.states.conv[-1]
    hidden.copy_(hidden.roll(1, dims=0))


def fallen(family: str, drafts: Drafts, by: float) -> bool:
    return right(drafts) < (1 - by) * right(cold(family)[1])


def test_fewer_are_right_without_the_shift(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unshifted(shift: HiddenShift, hidden: Tensor, step: Step) -> Tensor:
        shifted(shift, hidden, step)
        return hidden

    shifted = HiddenShift.__call__
    monkeypatch.setattr(HiddenShift, "__call__", unshifted)
    engine = load(family, chunked_prefill_size=PROMPT * NUMBER)
    assert fallen(family, drafts_of(answered(engine, specs()), specs()), by=0.2)


@by_each_entry
def test_fewer_are_right_where_verified_entries_are_not_written_again(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(layer: MtpLayer, hidden: Tensor, embedded: Tensor, step: Step) -> None:
        if step.prefill is None:
            layer.shift(hidden, step)
        else:
            record(layer, hidden, embedded, step)

    record = MtpLayer.record
    monkeypatch.setattr(MtpLayer, "record", kept)
    engine = load(family, chunked_prefill_size=PROMPT * NUMBER)
    assert fallen(family, drafts_of(answered(engine, specs()), specs()), by=0.02)


@by_each_entry
def test_fewer_are_right_where_a_chunks_last_hidden_state_is_lost(family: str) -> None:
    engine = load(family, chunked_prefill_size=GRID, prefix_caching=False, overlap=False)
    found: Drafts = {}
    for spec in specs():
        sampled: list[Event] = []

        def lose(events: list[Event], sampled: list[Event] = sampled) -> None:
            sampled += [event for event in events if isinstance(event, TokenSampled)]
            if not sampled:
                lose_hidden(engine)

        found |= drafts_of(answered(engine, [spec], lose), [spec])
    assert right(found) < right(cold(family)[1])


@pytest.mark.parametrize("family", ["qwen3_next"])  # one entry in each text
def test_fewer_are_right_where_a_snapshots_hidden_state_is_lost(family: str) -> None:
    engine = load(family)
    begin_cached(engine)
    lose_hidden(engine)
    events = answered(engine, specs())
    assert right(drafts_of(events, specs())) < right(cold(family)[1])
    assert_clean(engine)
