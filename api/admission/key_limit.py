"""The bound on what one API key may slow down the requests of others."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.api.admission.fair_queue import KeyName
from baton.api.admission.step_times import DecodeStepTimes

PRESENT_S = 10.0
"""A key counts as present for so long after its last request: most of a conversation is pauses."""


@dataclass
class _Use:
    """The requests of one key that are past their turn."""

    now: int = 0
    most: int = 0  # of the last `PRESENT_S`
    until: float = 0.0  # `most` holds up to here


class KeyLimit:
    """A rule for whether a key may have one request more beside those of the other keys.

    It may if a decode step then takes at most `slowdown` times as long as one of the others'
    requests alone. Each key may have one request in any case, and a key that is alone as many as
    there is room for.
    """

    def __init__(
        self,
        slowdown: float,
        step_times: DecodeStepTimes,
        clock: Callable[[], float],
    ) -> None:
        """
        slowdown: 0 for no bound.
        step_times: what is learned of the times of decode steps; while that is nothing, there is no
        bound. It is told whether several keys have requests.
        """
        self._slowdown = slowdown
        self._step_times = step_times
        self._clock = clock
        self._uses: dict[KeyName, _Use] = {}
        self._at_work = 0  # keys with requests past their turn

    def note(self, key: KeyName, requests: int) -> None:
        """Record how many requests of a key are past their turn."""
        use, now = self._uses.setdefault(key, _Use()), self._clock()
        self._at_work += (requests > 0) - (use.now > 0)
        use.now = requests
        if requests >= use.most or now >= use.until:
            use.most, use.until = requests, now + PRESENT_S
        self._step_times.shared = self._at_work > 1

    def allows(self, key: KeyName, ranks: int) -> bool:
        """Return True if `key` may have one more. ranks: decode ranks, which share the requests
        evenly."""
        own = self._uses.get(key)
        mine = 0 if own is None else own.now
        if not self._slowdown or not mine or len(self._uses) < 2:
            return True
        others = self._others(key)
        if not others:
            return True
        ranks = max(ranks, 1)
        alone = self._step_times.seconds_alone(max(others / ranks, 1.0))
        beside = self._step_times.seconds(max((others + mine + 1) / ranks, 1.0))
        return alone is None or beside is None or beside <= self._slowdown * alone

    def _others(self, key: KeyName) -> int:
        """Return the requests of the other keys that are present, and forget those that left."""
        now, found = self._clock(), 0
        for name, use in list(self._uses.items()):
            if now >= use.until:
                if not use.now:
                    del self._uses[name]
                    continue
                use.most = use.now
            if name != key:
                found += use.most
        return found
