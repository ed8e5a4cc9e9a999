"""Two engines under random use: whatever happens, tokens are right and the books balance."""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from engine.engines import STEPS, assert_clean, copy_state, greedy, make_engine, step_or_fail
from engine.hash_model import HashModel, expected_tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.core.finish import FinishReason
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.request.events import Event, PrefillHeld, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec, Reservation

TOKENS = st.integers(0, 95)  # not the end of sequence, which the model may still sample


class Disaggregated(RuleBasedStateMachine):
    """`source` takes new requests, some to be held; `target` takes requests and hand-offs."""

    overlap = False

    def __init__(self) -> None:
        super().__init__()
        models = HashModel(), HashModel()
        options: dict[str, Any] = {"chunk": 8, "overlap": self.overlap}
        self.source = make_engine(models[0], pages=14, max_running=4, **options)
        self.target = make_engine(models[1], pages=14, max_running=3, tickets=2, **options)
        self.sides = ((self.source, models[0]), (self.target, models[1]))
        self.specs: dict[str, RequestSpec] = {}
        self.outputs: dict[str, list[int]] = {}
        self.place: dict[str, Engine] = {}
        self.held: list[str] = []
        self.reserved: dict[str, Reservation] = {}

    @rule(
        prompt=st.lists(TOKENS, min_size=1, max_size=40),
        count=st.integers(0, 25),
        at_target=st.booleans(),
        hold=st.booleans(),
        priority=st.integers(-2, 2),
    )
    def submit(
        self, prompt: list[int], count: int, at_target: bool, hold: bool, priority: int
    ) -> None:
        name = f"r{len(self.specs)}"
        hold = hold and not at_target
        spec = RequestSpec(name, tuple(prompt), greedy(count), hold=hold, priority=priority)
        engine = self.target if at_target else self.source
        engine.submit(spec)
        self.specs[name], self.outputs[name], self.place[name] = spec, [], engine

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for engine in (self.source, self.target):
                for event in step_or_fail(engine):
                    self.hear(engine, event)
                assert_clean(engine)

    @precondition(lambda self: self.place)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.place)))
        self.place[name].cancel(name, "at random")
        if name in self.held:
            self.held.remove(name)

    @precondition(lambda self: self.place)
    @rule(data=st.data())
    def cancel_between_plan_and_run(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.place)))
        engine = self.place[name]
        for event in engine.plan_step():
            self.hear(engine, event)
        if name in self.place:
            engine.cancel(name, "in flight")
            if name in self.held:
                self.held.remove(name)
        assert_clean(engine)
        self.step(1)

    @precondition(lambda self: self.held)
    @rule()
    def reserve(self) -> None:
        name = self.held[0]
        if name in self.reserved:
            return
        prompt = self.specs[name].prompt_ids
        priority = self.specs[name].priority
        reservation = self.target.reserve(name, len(prompt), token_key(prompt), priority)
        if reservation is not None:
            self.reserved[name] = reservation

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.reserved)))
        self.target.reservations.abandon(self.reserved.pop(name))

    @precondition(lambda self: not set(self.reserved).isdisjoint(self.held))
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.reserved) & set(self.held))))
        reservation = self.reserved.pop(name)
        copy_state(self.source, name, self.target, reservation)
        given = tuple(self.outputs[name])
        self.target.adopt(replace(self.specs[name], hold=False, output_ids=given), reservation)
        self.source.release(name)
        self.held.remove(name)
        self.place[name] = self.target

    @rule(at_target=st.booleans())
    def fail_a_step(self, at_target: bool) -> None:
        engine, model = self.sides[at_target]
        # Else it depends on the clock which step is to fail.
        for launched in engine._steps.in_flight:
            assert isinstance(launched.done, Future)
            launched.done.exception(timeout=60)
        model.fail_next = True
        for event in step_or_fail(engine):
            self.hear(engine, event)

    @invariant()
    def books_balance(self) -> None:
        for engine in (self.source, self.target):
            assert_clean(engine)
        status = self.target.status()
        assert status.slots[Owner.TICKET] == len(self.reserved)

    def teardown(self) -> None:
        """Everything ends, and nothing is left."""
        for reservation in self.reserved.values():
            self.target.reservations.abandon(reservation)
        for name in self.held:
            self.source.cancel(name, "the end")
        self.held.clear()
        for _ in range(STEPS):
            if not self.place:
                break
            self.step(1)
            for name in list(self.held):
                self.source.cancel(name, "the end")
                self.held.remove(name)
        assert not self.place, f"never ended: {self.place}"
        for engine, model in self.sides:
            model.fail_next = False
            while engine.has_work:  # a last step, of requests that are gone; it may have failed
                assert not step_or_fail(engine), "a step of gone requests has nothing to tell"
            assert_clean(engine)
            status = engine.status()
            assert status.slots[Owner.LIVE] == status.pages[Owner.LIVE] == 0
            assert status.slots[Owner.TICKET] == status.pages[Owner.TICKET] == 0
            assert engine.flush_cache()
            assert engine.states.ids.available_to_channels == engine.states.ids.size - 1

    def hear(self, engine: Engine, event: Event) -> None:
        name = event.request_id
        assert self.place[name] is engine, "an event after the end, or from the wrong side"
        if isinstance(event, TokenSampled):
            assert event.index == len(self.outputs[name]), "a token lost or repeated"
            self.outputs[name].append(event.token_id)
        elif isinstance(event, PrefillHeld):
            self.held.append(name)
        elif isinstance(event, RequestFinished):
            del self.place[name]
            if name in self.held:
                self.held.remove(name)
            spec = self.specs[name]
            expected = expected_tokens(HashModel(), spec.prompt_ids, len(self.outputs[name]))
            assert self.outputs[name] == expected
            if event.end.reason is FinishReason.LENGTH:
                assert len(expected) == spec.sampling.max_tokens


class Overlapped(Disaggregated):
    """The disaggregated machine with every step planned while the one before it runs."""

    overlap = True


TestDisaggregated = Disaggregated.TestCase
TestDisaggregated.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestOverlapped = Overlapped.TestCase
TestOverlapped.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
