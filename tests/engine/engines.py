"""Engines over the hash model, small enough to fill, and ways to drive them."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from engine.hash_model import VOCAB, HashModel

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.layout.token_key import token_key
from baton.engine.request.events import Event, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec, Reservation
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import (
    DeviceProposer,
    Proposer,
    Proposers,
    TextSource,
    TreeProposer,
)
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import ForwardStream
from baton.text.tokenizer import Tokenizer

PAGE = 8
STEPS = 5000  # a bound on any loop here: no test waits for ever


def make_engine(
    model: HashModel | None = None,
    *,
    pages: int = 200,
    max_running: int = 4,
    chunk: int = 16,
    tickets: int = 0,
    held_fraction: float = 0.5,
    tokenizer: Tokenizer | None = None,
    stream: ForwardStream | None = None,
    proposer: Proposer | None = None,
    guesser: DeviceProposer | None = None,
    texts: tuple[TextSource, ...] = (),
    layer: DeviceProposer | None = None,
    tree: TreeProposer | None = None,
    **more: Any,
) -> Engine:
    """An engine with `pages` usable pages of 8 tokens, all its memory poisoned.

    proposer, guesser, texts: guess drafts, on the host and on the device, and in other texts.
    layer: guesses beside `guesser`, for the rows that `auto` chooses. tree: guesses in its place,
    where the options ask for trees. more: other fields of
    EngineConfig.
    """
    model = model or HashModel()
    config = EngineConfig(
        model=Path("."),
        max_running=max_running,
        chunked_prefill_size=chunk,
        tickets=tickets,
        held_fraction=held_fraction,
        memory_bytes=1 << 40,
        **{
            "page_size": PAGE,
            "cached_snapshots": 6,
            "snapshots_per_prefill": 4,
            "mamba_track_interval": 16,
        }
        | more,
    )
    proposers = None
    if proposer is not None or guesser is not None:
        proposers = Proposers(proposer or NgramProposer(), guesser, texts, layer=layer, tree=tree)
    plan = MemoryPlan(config, model.config, 0, 0)
    pool_bytes = plan.slots * plan.slot_layout.slot_bytes
    pool_bytes += (1 + pages) * plan.page_layout.page_bytes
    engine = Engine(
        replace(config, memory_bytes=plan.budget_bytes - plan.pool_bytes + pool_bytes),
        cast(Model, model),  # no test lets it draft as an MTP layer does
        tokenizer,
        stream,
        proposers,
    )
    assert engine.pages.ids.size == min(1 + pages, plan.pages)
    engine.states.storage.random_(0, 256)
    engine.pages.storage.random_(0, 256)
    return engine


def greedy(max_tokens: int = 12, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


def random_prompt(rng: random.Random, low: int = 1, high: int = 60) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(rng.randint(low, high)))


def assert_clean(engine: Engine) -> None:
    findings = engine.audit()
    assert not findings, findings


def run(engine: Engine, between: Callable[[list[Event]], None] | None = None) -> list[Event]:
    """Step until there is nothing to do; audit after each step."""
    events: list[Event] = []
    for _ in range(STEPS):
        if not engine.has_work:
            return events
        new = engine.step()
        assert_clean(engine)
        if between is not None:
            between(new)
        events += new
    raise AssertionError(f"still at work after {STEPS} steps: {engine.status()}")


def step_until(engine: Engine, true: Callable[[list[Event]], object]) -> list[Event]:
    """Step until `true` of all events so far. There must be work until then."""
    events: list[Event] = []
    for _ in range(STEPS):
        if true(events):
            return events
        assert engine.has_work, f"all work has ended before that: {engine.status()}"
        events += engine.step()
    raise AssertionError(f"not within {STEPS} steps: {engine.status()}")


def step_or_fail(engine: Engine) -> list[Event]:
    """One step, as the engine's loop drives it: a forward that raises ends its requests."""
    events = engine.plan_step()
    try:
        return events + engine.run_step()
    except RuntimeError as error:
        return events + engine.fail_step(error)


def tokens_of(events: list[Event], request_id: str) -> list[int]:
    """Its sampled tokens; their indices must follow one another."""
    mine = [e for e in events if isinstance(e, TokenSampled) and e.request_id == request_id]
    assert [e.index for e in mine] == list(range(mine[0].index, mine[0].index + len(mine)))
    return [e.token_id for e in mine]


def finish_of(events: list[Event], request_id: str) -> RequestFinished:
    (finish,) = [e for e in events if isinstance(e, RequestFinished) and e.request_id == request_id]
    return finish


def copy_state(source: Engine, request_id: str, target: Engine, into: Reservation) -> None:
    """Copy the slot and the pages of a held request into a reservation, as a channel does. Pages
    that the target's cache already holds are left alone."""
    held = source.parked_state(request_id)
    assert held.state.tokens == into.state.tokens and len(held.state.pages) == len(into.state.pages)
    target.states.storage[into.state.slot] = source.states.storage[held.state.slot]
    for mine, theirs in zip(held.state.pages, into.state.pages, strict=True):
        if theirs not in into.owned:
            continue
        target.pages.storage[theirs] = source.pages.storage[mine]


def hand_over(source: Engine, target: Engine, spec: RequestSpec, first: tuple[int, ...]) -> None:
    """Move held request `spec`, whose output so far is `first`, into `target`."""
    computed = source.parked_state(spec.request_id).state.tokens
    reservation = target.reserve(
        spec.request_id,
        computed,
        token_key((*spec.prompt_ids, *first[:-1])),
        salt=spec.cache_salt,
    )
    assert reservation is not None
    copy_state(source, spec.request_id, target, reservation)
    target.adopt(replace(spec, output_ids=first, hold=False), reservation)
    source.release(spec.request_id)
