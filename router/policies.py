"""Which workers of one role a request should try, best first.

A policy is handed a snapshot and gives back the same candidates in another order. Each role of
a router has its own instance, so that turns are counted a role.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """A worker that may be given a request. Set by the placer from the table, at each request."""

    worker_id: str
    load: int  # requests on it
    slots: int = 1  # requests that it runs at once

    @property
    def fullness(self) -> float:
        return self.load / self.slots


class Policy(Protocol):
    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """All of `candidates`, which come in a stable order, best first."""
        ...


class RoundRobin:
    """Each in its turn. The turn is remembered by name, so joins and losses do not upset it."""

    def __init__(self) -> None:
        self._last = ""

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        names = [c.worker_id for c in candidates]
        if self._last in names:
            start = names.index(self._last) + 1
        else:
            start = sum(_place(name) <= _place(self._last) for name in names)
        turned = [*candidates[start:], *candidates[:start]]
        if turned:
            self._last = turned[0].worker_id
        return turned


class LeastLoad:
    """The emptiest first; equals take turns, so that an idle cluster is used evenly."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        least = min((c.fullness for c in candidates), default=0.0)
        first = self._turns.order([c for c in candidates if c.fullness == least])
        rest = sorted((c for c in candidates if c.fullness != least), key=_fullness)
        return first + rest


class Random:
    """Any order, each as likely."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return self._rng.sample(list(candidates), len(candidates))


class PowerOfTwo:
    """The emptier of two drawn at random: nearly as even as least load, without its herding when
    several routers act on the same old reports (Mitzenmacher 2001)."""

    def __init__(self, rng: random.Random) -> None:
        self._random = Random(rng)

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        drawn = self._random.order(candidates)
        return sorted(drawn[:2], key=_fullness) + drawn[2:]


def _fullness(candidate: Candidate) -> float:
    return candidate.fullness


def _place(worker_id: str) -> tuple[int, str]:
    """The order of `WorkerTable.workers`."""
    return len(worker_id), worker_id


POLICIES: dict[str, Callable[[], Policy]] = {
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
    "random": lambda: Random(random.Random()),
    "power_of_two": lambda: PowerOfTwo(random.Random()),
}
