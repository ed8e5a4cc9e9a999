"""Overlap changes nothing: the forward stream, delayed and jittered, against steps one by one.

Whatever a planned step may touch too early or too late changes the hash model's tokens, or the
audit finds it. `--race-mixes 200` draws more mixes.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from engine.engines import assert_clean, copy_state, make_engine, run, step_or_fail, tokens_of
from engine.hash_model import VOCAB, HashModel, expected_tokens
from guards import NoHostReads

from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.request.events import Event, PrefillHeld, RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.stream.forward_stream import InlineStream, ThreadStream


@pytest.fixture
def mixes(request: pytest.FixtureRequest) -> int:
    """Return the number of mixes that a test draws; each is a mix of some twenty requests."""
    count: int = request.config.getoption("--race-mixes")
    return count


def jittered(rng: random.Random) -> Callable[[], AbstractContextManager[object]]:
    """Each forward starts late, by up to some planning steps, and sometimes ends late too."""

    @contextmanager
    def around() -> Iterator[None]:
        time.sleep(rng.choice((0.0, 0.0, 0.0005, 0.002)))  # a late start
        yield
        time.sleep(rng.choice((0.0, 0.0, 0.001)))  # a late end

    return around


@dataclass
class Mix:
    """Requests and what happens to them, drawn once, run on several engines."""

    specs: list[RequestSpec]
    after: list[int]  # steps between submissions
    cancels: dict[str, int]  # steps after its submission at which a request is cancelled

    @staticmethod
    def draw(rng: random.Random) -> "Mix":
        shared = [tuple(rng.randrange(VOCAB) for _ in range(70)) for _ in range(2)]
        specs: list[RequestSpec] = []
        after: list[int] = []
        cancels: dict[str, int] = {}
        for number in range(20):
            name = f"r{number}"
            prompt = rng.choice(shared)[: rng.choice((0, 17, 33, 70))]
            earlier = [
                spec for spec in specs if defined(spec.sampling) and len(spec.prompt_ids) < 150
            ]
            if earlier and rng.random() < 0.5:  # the next turn: decode's own snapshots are hit
                last = rng.choice(earlier)
                answer = expected_tokens(HashModel(), last.prompt_ids, last.sampling.max_tokens)
                prompt = (*last.prompt_ids, *answer)
            prompt += tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 30)))
            priority = rng.choice((0, 0, 0, -1, 1, 3))
            specs.append(RequestSpec(name, prompt, draw_sampling(rng), priority=priority))
            after.append(rng.choice((0, 0, 1, 3, 8)))
            if rng.random() < 0.15:
                cancels[name] = rng.randrange(6)
        return Mix(specs, after, cancels)

    def run(self, engine: Engine) -> list[Event]:
        events: list[Event] = []
        due: dict[int, list[str]] = {}
        step = 0

        def advance() -> None:
            nonlocal step
            for name in due.pop(step, []):
                engine.cancel(name, "changed its mind")
            events.extend(engine.step())
            assert_clean(engine)
            step += 1

        for spec, pause in zip(self.specs, self.after, strict=True):
            engine.submit(spec)
            if spec.request_id in self.cancels:
                due.setdefault(step + self.cancels[spec.request_id], []).append(spec.request_id)
            for _ in range(pause):
                advance()
        while engine.has_work:
            advance()
        return events


def defined(sampling: SamplingParams) -> bool:
    """The definition alone says what the tokens are, and how many."""
    greedy = sampling.temperature == 0.0 and not sampling.penalised
    return greedy and sampling.ignore_eos and not sampling.stop_token_ids


def draw_sampling(rng: random.Random) -> SamplingParams:
    """Mostly greedy; some sampled, some penalised, some that may end early."""
    if rng.random() < 0.5:
        return SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 60), ignore_eos=True)
    return SamplingParams(
        temperature=rng.choice((0.0, 1.0)),
        top_p=rng.choice((1.0, 0.9)),
        presence_penalty=rng.choice((0.0, 0.0, 1.5)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.3)),
        seed=rng.getrandbits(64),
        max_tokens=rng.randint(1, 40),
        min_tokens=rng.choice((0, 1)),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=(rng.randrange(VOCAB),) if rng.random() < 0.3 else (),
        logprobs=rng.choice((None, None, 2)),
    )


def small(stream: ThreadStream | None, **options: Any) -> Engine:
    """Few pages and slots, so that requests wait, evict and preempt."""
    defaults: dict[str, Any] = {
        "pages": 36,
        "max_running": 4,
        "chunk": 24,
        "cached_snapshots": 4,
        "canary": True,
    }
    return make_engine(stream=stream, **defaults | {"overlap": stream is not None} | options)


def told(events: list[Event], name: str) -> list[Event]:
    """Return the events of one request, without what the cache had or kept of it: that depends on
    the order of the requests."""
    mine = [e for e in events if e.request_id == name and type(e).__name__ != "Scheduled"]
    return [
        replace(e, usage=replace(e.usage, cached_tokens=0), state_tokens=0)
        if isinstance(e, RequestFinished)
        else e
        for e in mine
    ]


@pytest.mark.parametrize("snapshots", [1, 4])
def test_a_jittered_stream_tells_what_steps_one_by_one_tell(
    seeded: random.Random, snapshots: int, mixes: int
) -> None:
    drawn = preempted = hits = 0
    while drawn < mixes or not (preempted and hits):  # most mixes do both, a dozen may not
        drawn += 1
        assert drawn <= 20 * mixes, "the mixes were to preempt and to hit"
        mix = Mix.draw(seeded)
        slow = small(ThreadStream(jittered(seeded)), snapshots_per_prefill=snapshots)
        plain = small(None, snapshots_per_prefill=snapshots)
        ours, theirs = mix.run(slow), mix.run(plain)
        for spec in mix.specs:
            name = spec.request_id
            if name in mix.cancels:  # how far it came depends on the clock; what came must not
                assert is_prefix(tokens_or_none(ours, name), spec)
                continue
            assert told(ours, name) == told(theirs, name), name
            assert is_prefix(tokens_or_none(ours, name), spec)
        preempted += slow.counters.preemptions
        hits += slow.counters.state_hit_tokens
        status = slow.status()
        for owner in (Owner.LIVE, Owner.TRACK, Owner.TRANSFER, Owner.TICKET):
            assert status.slots[owner] == status.pages[owner] == 0
        slow.close()


def tokens_or_none(events: list[Event], name: str) -> list[int]:
    return (
        tokens_of(events, name) if any(hasattr(e, "token_id") for e in told(events, name)) else []
    )


def is_prefix(tokens: list[int], spec: RequestSpec) -> bool:
    """Return whether `tokens` begin the request's defined answer; True where its sampling has
    none."""
    if not defined(spec.sampling):
        return True
    return tokens == expected_tokens(HashModel(), spec.prompt_ids, len(tokens))


def test_hand_offs_into_just_freed_memory_keep_their_bytes(
    seeded: random.Random, mixes: int
) -> None:
    """Tickets are granted while steps of cancelled requests are in flight."""
    granted = 0
    for _ in range(mixes):
        source = small(None, max_running=8, held_fraction=1.0, pages=200)
        target = small(ThreadStream(jittered(seeded)), tickets=3)
        specs = [
            RequestSpec(f"h{n}", tuple(seeded.randrange(VOCAB) for _ in range(40)),
                        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True), hold=True)
            for n in range(6)
        ]  # fmt: skip
        for spec in specs:
            source.submit(spec)
        events = run(source)
        held = [e.request_id for e in events if isinstance(e, PrefillHeld)]
        noise = Mix.draw(seeded)
        for number, spec in enumerate(noise.specs[:8]):
            target.submit(replace(spec, request_id=f"n{number}"))
        answers: list[Event] = []
        reservations = {}
        for _ in range(400):
            answers += step_or_fail(target)
            if seeded.random() < 0.3:
                target.cancel(f"n{seeded.randrange(8)}", "at random")
            waiting = [s for s in specs if s.request_id in held]
            if waiting and waiting[0].request_id not in reservations:
                reservation = target.reserve(waiting[0].request_id, 40)
                if reservation is not None:
                    copy_state(source, waiting[0].request_id, target, reservation)
                    reservations[waiting[0].request_id] = reservation
                    granted += 1
            elif waiting:
                spec = waiting[0]
                first = tuple(tokens_of(events, spec.request_id))
                target.adopt(
                    replace(spec, hold=False, output_ids=first), reservations[spec.request_id]
                )
                held.remove(spec.request_id)
            assert_clean(target)
            if not held and not target.has_work:
                break
        answers += run(target)
        for spec in specs:
            got = tokens_of(events, spec.request_id) + tokens_of(answers, spec.request_id)
            assert got == expected_tokens(HashModel(), spec.prompt_ids, 12)
        target.close()
    assert granted == 6 * mixes


def test_a_row_of_an_earlier_admission_changes_nothing() -> None:
    """Preempted and admitted again while its chunk is in flight: that chunk's snapshots go."""
    engine = make_engine(stream=InlineStream(), chunk=32)
    prompt = tuple(range(80))
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    engine.submit(RequestSpec("a", prompt, sampling))
    engine.step()  # the first chunk is in flight, and has bound track slots
    (request,) = engine._scheduler.running
    engine._scheduler._preempt(request)
    engine.plan_step()  # admitted again, from the start
    assert request.admissions == 2 and request.lengths.computed == 32
    engine.step()
    assert_clean(engine)
    assert request.lengths.settled == 0, (
        "the first chunk went into pages that are not its own any more"
    )
    events = run(engine)
    assert tokens_of(events, "a") == expected_tokens(HashModel(), prompt, 5)
    assert engine.counters.snapshots_donated < engine.counters.snapshots_written


def test_steps_really_overlap() -> None:
    """The next step is planned while the one before it is held up on the stream."""
    gate = threading.Event()

    @contextmanager
    def held_up() -> Iterator[None]:
        assert gate.wait(60)
        yield

    engine = make_engine(stream=ThreadStream(held_up))
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    engine.submit(RequestSpec("a", (1, 2, 3), sampling))
    engine.step()  # returns with the step in flight
    engine.plan_step()
    assert len(engine._steps.batches) == 2 and not gate.is_set()
    gate.set()
    events = run(engine)
    assert tokens_of(events, "a") == expected_tokens(HashModel(), (1, 2, 3), 5)


def test_a_forward_that_fails_ends_its_requests_and_no_other(seeded: random.Random) -> None:
    model = HashModel()
    engine = make_engine(model, stream=ThreadStream(jittered(seeded)))
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    engine.submit(RequestSpec("bad", (1, 2, 3), sampling))
    events = step_or_fail(engine)
    model.fail_next = True
    events += step_or_fail(engine)
    engine.submit(RequestSpec("good", (4, 5, 6), sampling))
    while engine.has_work:
        events += step_or_fail(engine)
        assert_clean(engine)
    ends = {e.request_id: e for e in events if isinstance(e, RequestFinished)}
    assert ends["bad"].end.reason is FinishReason.ERROR and "told to fail" in str(ends["bad"].error)
    assert ends["good"].end.reason is FinishReason.LENGTH
    assert tokens_of(events, "good") == expected_tokens(HashModel(), (4, 5, 6), 30)


def test_the_guard_stands_round_the_streams_thread() -> None:
    """A read on the host by the model raises there, so a test with a real model is a check."""
    engine = make_engine(stream=ThreadStream(NoHostReads))
    engine.submit(RequestSpec("a", (1, 2, 3), SamplingParams(max_tokens=2)))
    with pytest.raises(Exception, match=r"(?i)host|read"):
        run(engine)
