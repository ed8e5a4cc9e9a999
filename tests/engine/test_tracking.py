"""Tests of decode rows that take a snapshot: the row writes the snapshot's slot, the request's next
row reads it there, and nothing is copied.

The hash model's tokens depend on every token behind the state that a row reads; the canary compares
each read with the tokens that the slot stands for.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    hand_over,
    make_engine,
    run,
    step_or_fail,
    step_until,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens, hash_config
from oracle.reference import Oracle
from oracle.specs import SPECS
from torch.utils._python_dispatch import TorchDispatchMode

from baton.core.finish import FinishReason
from baton.engine.assembly.loader import load_model
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.request.events import Event, PrefillHeld
from baton.engine.request.request import Request, RequestSpec
from baton.engine.settings.config import EngineConfig
from baton.engine.stream.forward_stream import ThreadStream
from baton.kernels.dispatch import KernelChoice

GRID = 16  # of `make_engine`: prompts of hash models are tracked at its multiples
ONE_OF_EACH_MIXER = ["granite_dense_nope", "qwen3_next_odd", "kimi_odd", "lfm2_odd"]
both_orders = pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one by one"])


def drawn(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def assert_answers(events: list[Event], specs: list[RequestSpec]) -> None:
    for spec in specs:
        count = spec.sampling.max_tokens
        expected = expected_tokens(HashModel(), spec.prompt_ids, count)
        assert tokens_of(events, spec.request_id) == expected, spec.request_id


def assert_idle(engine: Engine) -> None:
    status = engine.status()
    for owner in (Owner.LIVE, Owner.TRACK, Owner.TICKET, Owner.TRANSFER):
        assert status.slots[owner] == status.pages[owner] == 0
    assert engine._pools.cache.snapshots_locked == 0


class Operations(TorchDispatchMode):
    """The names of the operations that each step runs on the stream's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[str]] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        self.steps.append([])
        with self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.steps[-1].append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernels", KernelChoice)
@pytest.mark.parametrize("name", ONE_OF_EACH_MIXER)
def test_a_tracked_step_launches_what_the_step_before_it_did(
    oracle: Oracle, name: str, kernels: KernelChoice, seeded: random.Random
) -> None:
    operations = Operations()
    config = EngineConfig(
        model=oracle.checkpoint(name),
        kernels=kernels,
        page_size=64,
        max_running=4,
        max_model_len=256,
        memory_bytes=1 << 28,
        mamba_track_interval=64,
    )
    engine = Engine(config, load_model(config), None, ThreadStream(operations.around))
    vocab = SPECS[name].config["vocab_size"]
    for row in range(3):  # on two pages from their prompts' end to beyond the snapshot at 128
        prompt = tuple(seeded.randrange(3, vocab) for _ in range(122))
        engine.submit(RequestSpec(str(row), prompt, greedy(7)))
    tracked: list[int] = []
    while engine.has_work:
        before = engine.counters.snapshots_written
        engine.plan_step()
        if engine.counters.snapshots_written > before:
            tracked.append(engine.counters.steps - 1)
        engine.run_step()
        assert_clean(engine)
    engine.close()
    last = tracked[-1]
    assert last > 2 and engine.counters.snapshots_skipped == 0
    assert engine.counters.snapshots_donated >= 3
    assert operations.steps[last] == operations.steps[last - 1] != []


@both_orders
@pytest.mark.parametrize("page", [1, 4, 16])
def test_a_state_that_is_tracked_at_every_page_is_read_where_it_was_left(
    seeded: random.Random, page: int, overlap: bool
) -> None:
    """Pages of one token have every decode row tracked: the request's own slot serves none."""
    engine = make_engine(
        HashModel(hash_config(chunk=page)),
        page_size=page,
        mamba_track_interval=page,
        pages=1600 // page,
        chunk=32,
        cached_snapshots=40,
        canary=True,
        overlap=overlap,
    )
    shared = drawn(seeded, 20)
    specs = [
        RequestSpec(
            f"r{n}",
            shared[: seeded.choice((0, 20))] + drawn(seeded, seeded.randint(1, 20)),
            greedy(seeded.randint(20, 40)),
        )
        for n in range(5)
    ]
    twin = RequestSpec("twin", specs[0].prompt_ids, specs[0].sampling)
    for spec in (*specs, twin):
        engine.submit(spec)
    assert_answers(run(engine), [*specs, twin])
    counters = engine.counters
    assert counters.snapshots_donated > 5 * 20 // page
    assert_idle(engine)


@both_orders
def test_twins_that_are_tracked_together_keep_one_snapshot(
    seeded: random.Random, overlap: bool
) -> None:
    """The cache keeps the first one's. The other's slot is free at once, and what it reads next,
    that slot or the kept one, holds its state."""
    engine = make_engine(canary=True, overlap=overlap, chunk=64)
    prompt = drawn(seeded, GRID - 4)
    specs = [RequestSpec(name, prompt, greedy(2 * GRID)) for name in ("a", "b", "c")]
    for spec in specs:
        engine.submit(spec)
    assert_answers(run(engine), specs)
    assert engine.counters.snapshots_donated == 2  # at 16 and 32, once each
    assert engine.counters.snapshots_written == 6
    assert_idle(engine)


def crowded(rng: random.Random, overlap: bool) -> Engine:
    """Four requests may run, and two slots are free beside theirs: all others are on loan."""
    engine = make_engine(
        max_running=4,
        cached_snapshots=0,
        snapshots_per_prefill=1,
        chunk=64,
        canary=True,
        overlap=overlap,
    )
    slots = engine.states.ids
    while slots.available > 4 + 2:  # a slot for each that runs, and some to spare
        prompt = drawn(rng, GRID + 1)
        engine.submit(RequestSpec("lent", prompt, greedy(1)))
        run(engine)
        assert engine.prefixes.lend(SaltedPrefix(prompt)) is not None
    return engine


def early_and_late(rng: random.Random, late: int) -> list[RequestSpec]:
    """Four requests. The last two are tracked at their fifth decode row, the first two, which come
    before them in a step, `late` rows later."""
    lengths = (GRID - 5 - late, GRID - 5 - late, GRID - 5, GRID - 5)
    return [
        RequestSpec(f"r{late}.{n}", drawn(rng, length), greedy(9 + late))
        for n, length in enumerate(lengths)
    ]


@both_orders
def test_a_snapshot_stays_while_a_row_is_to_read_it(seeded: random.Random, overlap: bool) -> None:
    """Two rows are tracked one step after two others took the last free slots: they find none. If
    they took what the others read next, tokens would change."""
    engine = crowded(seeded, overlap)
    specs = early_and_late(seeded, late=1)
    before = engine.counters.snapshots_donated
    for spec in specs:
        engine.submit(spec)
    assert_answers(run(engine), specs)
    assert engine.counters.snapshots_donated == before + 2
    assert engine.counters.snapshots_skipped == 2


def test_a_snapshot_stays_while_its_request_waits_for_a_token(seeded: random.Random) -> None:
    """A row under a grammar has no place in the step after its tracked row; others are tracked
    then."""
    engine = crowded(seeded, overlap=True)
    for late in range(9):
        specs = early_and_late(seeded, late)
        for spec in specs:
            engine.submit(spec)
        for spec in specs[2:]:
            request = engine._requests.named(spec.request_id)
            request.rules = AnyToken()  # type: ignore[assignment]
        assert_answers(run(engine), specs)
    assert engine.counters.snapshots_skipped


class AnyToken:
    """Rules that let everything follow, but want to see each token first."""

    ended, follows = False, True

    def push(self, token: int) -> None:
        """Accept it."""

    def allowed(self) -> None:
        """Return no mask."""


def at_the_grid(engine: Engine, spec: RequestSpec) -> tuple[Request, list[Event]]:
    """Run until the request's newest state lies in a track slot. With overlap the tracked row is
    under way then; without, its result has been processed."""
    engine.submit(spec)
    request = engine._requests.named(spec.request_id)
    return request, step_until(engine, lambda _: request.state_slot != request.slot)


def cancel(engine: Engine, request: Request) -> None:
    engine.cancel(request.request_id, "changed its mind")


def preempt(engine: Engine, request: Request) -> None:
    engine._scheduler._preempt(request)


def flush(engine: Engine, request: Request) -> None:
    engine.flush_cache()


def fail(engine: Engine, request: Request) -> None:
    model = engine._runner._model
    assert isinstance(model, HashModel)
    model.fail_next = True


BETWEEN: list[Callable[[Engine, Request], None]] = [cancel, preempt, flush, fail]


@both_orders
@pytest.mark.parametrize("event", BETWEEN, ids=lambda event: event.__name__)
@pytest.mark.parametrize("steps", [0, 1])
def test_what_happens_between_a_tracked_row_and_the_next_harms_nobody(
    seeded: random.Random,
    event: Callable[[Engine, Request], None],
    steps: int,
    overlap: bool,
) -> None:
    """steps: after that of the tracked row, before it happens."""
    engine = make_engine(canary=True, overlap=overlap, pages=60)
    other = RequestSpec("other", drawn(seeded, 9), greedy(40))
    spec = RequestSpec("tracked", drawn(seeded, GRID - 5), greedy(30))
    engine.submit(other)
    request, events = at_the_grid(engine, spec)
    for _ in range(steps):
        events += engine.step()
    event(engine, request)
    assert_clean(engine)
    while engine.has_work:
        events += step_or_fail(engine)
        assert_clean(engine)
    if event is cancel:
        assert finish_of(events, "tracked").end.reason is FinishReason.ABORT
    elif event is fail:
        assert finish_of(events, "tracked").end.reason is FinishReason.ERROR
        assert "told to fail" in str(finish_of(events, "tracked").error)
    else:
        assert_answers(events, [spec])
    if event is not fail:
        assert_answers(events, [other])
    assert_idle(engine)
    again = replace(spec, request_id="again")
    engine.submit(again)
    assert_answers(run(engine), [again])


@both_orders
@pytest.mark.parametrize("count", range(4, 9))
def test_a_request_that_ends_at_its_tracked_row_leaves_its_snapshot(
    seeded: random.Random, count: int, overlap: bool
) -> None:
    """Tracked at 16 of 11 + count - 1 computed tokens: the last row, the one before it, and so
    on. With overlap the row after the last may be under way when the request stops early."""
    engine = make_engine(canary=True, overlap=overlap)
    prompt = drawn(seeded, GRID - 5)
    answer = expected_tokens(HashModel(), prompt, count)
    sampling = replace(greedy(60), stop_token_ids=(answer[-1],))
    count = answer.index(answer[-1]) + 1
    engine.submit(RequestSpec("a", prompt, sampling))
    assert tokens_of(run(engine), "a") == answer[:count]
    assert_idle(engine)
    tracked = len(prompt) + count - 1 >= GRID
    turn = (*prompt, *answer[:count], *drawn(seeded, 12))
    next_turn = RequestSpec("b", turn, greedy(5))
    engine.submit(next_turn)
    events = run(engine)
    assert_answers(events, [next_turn])
    assert finish_of(events, "b").usage.cached_tokens == (GRID if tracked else 0)


@both_orders
def test_a_request_that_is_handed_over_one_token_below_the_grid_is_tracked_by_its_first_row(
    seeded: random.Random, overlap: bool
) -> None:
    source = make_engine(overlap=overlap)
    target = make_engine(tickets=1, canary=True, overlap=overlap)
    spec = RequestSpec("a", drawn(seeded, GRID - 1), greedy(20), hold=True)
    source.submit(spec)
    first = tuple(tokens_of(run(source), "a"))
    hand_over(source, target, spec, first)
    got = [*first, *tokens_of(run(target), "a")]
    assert got == expected_tokens(HashModel(), spec.prompt_ids, 20)
    assert target.counters.snapshots_donated == 2
    assert_idle(target)


def test_a_held_request_with_output_of_its_own_is_computed_and_sampled_no_further(
    seeded: random.Random,
) -> None:
    """Its last chunk may be a single token; that is none to sample from."""
    prompt = drawn(seeded, GRID)
    expected = expected_tokens(HashModel(), prompt, 8)
    for given in (1, 2, 3):
        source, target = make_engine(chunk=GRID), make_engine(tickets=1)
        spec = RequestSpec("a", prompt, greedy(8), output_ids=tuple(expected[:given]), hold=True)
        source.submit(spec)
        events = run(source)
        assert events[-1] == PrefillHeld("a")
        assert source.parked_state("a").state.tokens == GRID + given - 1
        hand_over(source, target, spec, spec.output_ids)
        assert tokens_of(run(target), "a") == expected[given:]


def test_the_pool_of_states_is_written_by_the_model_alone(seeded: random.Random) -> None:
    """A tracked row leaves its request's own slot as it was."""
    engine = make_engine(overlap=False)
    spec = RequestSpec("a", drawn(seeded, GRID - 3), greedy(12))
    request, _ = at_the_grid(engine, spec)
    own, snapshot = request.slot, request.state_slot
    storage = engine.states.storage
    assert not torch.equal(storage[own], storage[snapshot])
    before = storage[snapshot].clone()
    run(engine)
    assert torch.equal(storage[snapshot], before)
