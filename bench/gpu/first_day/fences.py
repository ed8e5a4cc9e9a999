"""Hand-offs beside an engine whose stream is slow: nothing may be read or written too early.

A stand-in for a channel copies layers as soon as it is told of them, and fills tickets with random
bytes at once. Requests are held, cancelled, preempted and released at random meanwhile.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.eager_channel import EagerChannel
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.models import FEW_LAYERS, write_config
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.layout.device import device_of
from baton.engine.request.events import Event, PrefillHeld, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec, Reservation
from baton.engine.settings.config import EngineConfig
from baton.engine.step.layer_progress import OnLayers
from baton.engine.stream.forward_stream import CudaStream, Pending, ThreadStream

P = TypeVar("P")
T = TypeVar("T")

_REQUESTS = 24
_TOKENS = 16  # of an answer
_STEPS = 3000  # at most
_SLOW_CYCLES = 20_000_000  # some 10 ms
_SLOW_S = 1e-3  # on a CPU


class SlowStream(CudaStream):
    """A CUDA stream that idles before each step, once it is `slow`."""

    slow = False

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        def later() -> T:
            if self.slow:
                torch.cuda._sleep(_SLOW_CYCLES)  # type: ignore[no-untyped-call]
            return work()

        return super().submit(later)


class SlowThread(ThreadStream):
    """A thread that idles before each step, once it is `slow`."""

    slow = False

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        def later() -> T:
            if self.slow:
                time.sleep(_SLOW_S)
            return work()

        return super().submit(later)


def fences(part: Part) -> None:
    """Run each family, a line each."""
    rows = {f"{config['model_type']}: hand-offs": config for config in FEW_LAYERS}
    side_by_side(part, {what: partial(_tell, what, rows[what], part) for what in rows})


def _tell(what: str, config: dict[str, Any], part: Part) -> None:
    with TemporaryDirectory() as folder:
        path = write_config(Path(folder) / "model", config, small=True)
        mix = run_mix(options_for(path, part.device))
    fault = mix.fault
    part.add(what, fault or "in order", beside=mix.told, failed=bool(fault))


def options_for(path: Path, device: torch.device) -> EngineConfig:
    """Return the options of a small engine with tickets, a canary and short groups of layers."""
    return replace(
        options_of(path, device, max_running=6, small=True),
        prefix_caching=True,
        chunked_prefill_size=32,
        canary=True,
        tickets=3,
        held_fraction=1.0,
        layer_group_bytes=1,
    )


@dataclass
class Mix:
    """The results of one run of the requests."""

    copies: int = 0  # of layers, that were compared
    early: int = 0  # of them, with other bytes than when the prompt was computed
    tickets: int = 0
    changed: int = 0  # slots and pages of tickets with other bytes than were written
    adopted: int = 0
    preempted: int = 0
    cancelled: set[str] = field(default_factory=set)
    other: list[str] = field(default_factory=list)  # requests with other tokens than alone
    findings: list[str] = field(default_factory=list)  # of audits

    @property
    def fault(self) -> str:
        """Return what was wrong, or nothing."""
        if self.early:
            return f"READ TOO EARLY: {self.early} of {self.copies}"
        if self.changed:
            return f"WRITTEN UNDER A TICKET: {self.changed}"
        if self.other:
            return f"OTHER TOKENS: {', '.join(self.other[:4])}"
        if self.findings:
            return f"AUDIT: {self.findings[0]}"
        if not (self.copies and self.tickets and self.adopted and self.preempted):
            return "NOTHING WAS TRIED"
        return ""

    @property
    def told(self) -> str:
        return (
            f"{self.copies} copies, {self.tickets} tickets, {self.adopted} adopted, "
            f"{self.preempted} preempted, {len(self.cancelled)} cancelled"
        )


def run_mix(
    options: EngineConfig, listening: Callable[[OnLayers], OnLayers] = lambda told: told
) -> Mix:
    """Run the requests plainly, then slowly with a channel beside, and compare.

    listening: makes the engine's listener of the channel's; tests make it a bad one.
    """
    device = device_of(options.device)
    model = load_model(options)
    specs = drawn(random.Random(0), model.config.vocab_size)
    with closing(Engine(options, model, None)) as plain:
        expected = _answers(plain, specs)
    stream = SlowStream(device) if device.type == "cuda" else SlowThread()
    with closing(Engine(options, model, None, stream)) as engine:
        channel = EagerChannel(engine, device)
        engine.listen(listening(channel.told))
        stream.slow = True
        return _Driver(engine, channel, specs, expected).run()


def drawn(rng: random.Random, vocab: int) -> list[RequestSpec]:
    """Return requests of which some share prefixes, half of them to be held."""
    shared = [rng.randrange(3, vocab) for _ in range(64)]
    greedy = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)
    specs = []
    for number in range(_REQUESTS):
        own = [rng.randrange(3, vocab) for _ in range(rng.randint(3, 90))]
        ids = (*shared[: rng.choice((0, 0, 32, 64))], *own)
        specs.append(RequestSpec(f"r{number}", ids, greedy, hold=number % 2 == 0))
    return specs


def _answers(engine: Engine, specs: Sequence[RequestSpec]) -> dict[str, tuple[int, ...]]:
    outputs = engine.generate([spec.prompt_ids for spec in specs], specs[0].sampling)
    return {spec.request_id: output.token_ids for spec, output in zip(specs, outputs, strict=True)}


class _Driver:
    """One run of the requests: it steps the engine and does to it what workers do."""

    def __init__(
        self,
        engine: Engine,
        channel: EagerChannel,
        specs: Sequence[RequestSpec],
        expected: dict[str, tuple[int, ...]],
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._specs = {spec.request_id: spec for spec in specs}
        self._expected = expected
        self._rng = random.Random(1)
        self._mix = Mix()
        self._waiting = list(specs)
        self._tokens: dict[str, list[int]] = {name: [] for name in self._specs}
        self._live: set[str] = set()
        self._held: list[str] = []
        self._tickets: dict[str, Reservation] = {}  # of held requests, full of noise
        self._loose: list[Reservation] = []  # of requests that never come

    def run(self) -> Mix:
        """Step until all requests are over."""
        for step in range(_STEPS):
            self._submit()
            for event in self._engine.step():
                self._take(event)
            self._disturb()
            self._hand_over()
            if step % 8 == 0:
                self._mix.findings += self._engine.audit()
            over = not (self._waiting or self._live or self._held or self._tickets)
            if over and not self._engine.has_work:
                break
        else:
            self._mix.findings.append(f"still at work after {_STEPS} steps")
        for reservation in self._loose:
            self._abandon(reservation)
        self._mix.findings += self._engine.audit()
        self._compare()
        return self._mix

    def _submit(self) -> None:
        if self._waiting and self._rng.random() < 0.5:
            spec = self._waiting.pop(0)
            self._live.add(spec.request_id)
            self._engine.submit(spec)

    def _take(self, event: Event) -> None:
        name = event.request_id
        if isinstance(event, TokenSampled):
            self._tokens[name].append(event.token_id)
        elif isinstance(event, PrefillHeld):
            self._live.discard(name)
            self._held.append(name)
            copies, early = self._channel.early(name, self._engine.parked_state(name))
            self._mix.copies += copies
            self._mix.early += early
        elif isinstance(event, RequestFinished):
            self._live.discard(name)

    def _disturb(self) -> None:
        """Cancel, preempt, and take or give back a ticket, each now and then."""
        scheduler, rng = self._engine._scheduler, self._rng
        if self._live and rng.random() < 0.04:
            name = rng.choice(sorted(self._live))
            self._mix.cancelled.add(name)
            self._channel.forget(name)
            self._engine.cancel(name, "at random")
        decoding = [r for r in scheduler.running if r.decodes and not r.spec.hold]
        if decoding and rng.random() < 0.15:
            scheduler._preempt(rng.choice(decoding))
            self._mix.preempted += 1
        if not self._loose and rng.random() < 0.3:
            name = f"loose-{self._mix.tickets}"
            if (reservation := self._reserve(name, rng.randint(5, 60))) is not None:
                self._loose.append(reservation)
        elif self._loose and rng.random() < 0.3:
            self._abandon(self._loose.pop())

    def _reserve(self, name: str, tokens: int) -> Reservation | None:
        reservation = self._engine.reserve(name, tokens)
        if reservation is not None:
            self._channel.write_noise(reservation)
            self._mix.tickets += 1
        return reservation

    def _abandon(self, reservation: Reservation) -> None:
        self._mix.changed += self._channel.changed(reservation)
        self._engine.reservations.abandon(reservation)

    def _hand_over(self) -> None:
        """Take a ticket for a held request; some steps later, move it there, and let it go on."""
        for name in list(self._held):
            parked = self._engine.parked_state(name)
            reservation = self._tickets.get(name)
            if reservation is None:
                found = self._reserve(f"{name}-here", parked.state.tokens)
                if found is not None:
                    self._tickets[name] = found
            elif self._rng.random() < 0.5:
                del self._tickets[name]
                self._mix.changed += self._channel.changed(reservation)
                self._channel.move(parked, reservation)
                self._adopt(name, reservation)

    def _adopt(self, name: str, reservation: Reservation) -> None:
        spec, here = self._specs[name], f"{name}-here"
        self._tokens[here] = list(self._tokens[name])
        first = tuple(self._tokens[here])
        self._engine.adopt(
            replace(spec, request_id=here, hold=False, output_ids=first), reservation
        )
        self._live.add(here)
        self._engine.release(name)
        self._held.remove(name)
        self._mix.adopted += 1

    def _compare(self) -> None:
        """Compare all tokens; those of a cancelled request only as far as it came."""
        for name, tokens in self._tokens.items():
            original = name.removesuffix("-here")
            expected = self._expected[original]
            handed = self._specs[original].hold and name == original
            whole = name not in self._mix.cancelled and not handed
            if tuple(tokens) != (expected if whole else expected[: len(tokens)]):
                self._mix.other.append(name)
