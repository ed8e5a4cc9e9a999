"""The measured seconds of steps, by how many rows decode and how many tokens each has."""

import math
from collections import deque

from baton.engine.settings.choices import WINDOWS
from baton.engine.speculation.window_gain import CUT, PLAIN

_LATEST = 8  # measurements of a kind of step that are kept
_ENOUGH = 3  # of them before they count
_FIRST = 2  # measurements that are dropped: the first steps of a kind touch memory and record
# Steps after which measurements are forgotten, of plain steps and others, so that they are made
# again: the machine may have been busy, or be so now.
_OLD_PLAIN, _OLD = 256, 128
# What a token more in the window is taken to cost, as a part of a plain step, until it is measured:
# little, so that it is tried.
_GUESSED = 0.1


class _Kind:
    """The measurements of steps of one number of rows and one window."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_LATEST)
        self.seen = 0  # steps, those included that were dropped
        self.last = 0  # number of the newest, among all steps

    @property
    def usual(self) -> float:
        """The lower quartile: whatever else the machine does can only make a step longer."""
        return sorted(self.seconds)[len(self.seconds) // 4]


class StepCosts:
    """The seconds of steps without prompts."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._steps = 0

    def add(self, rows: int, window: int, seconds: float) -> None:
        """Note a step of `rows` rows of `window` tokens, or CUT."""
        key = _about(rows), window
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
        if not self._fresh(kind, window):
            kind.seconds.clear()
        self._steps += 1
        kind.seen, kind.last = kind.seen + 1, self._steps
        if kind.seen > _FIRST:
            kind.seconds.append(seconds)

    def knows_plain(self, rows: int) -> bool:
        """Return true if plain steps of about so many rows are measured."""
        return self._known(_about(rows), PLAIN)

    def ratio(self, rows: int, window: int) -> float:
        """Return the cost of a step of `window` tokens a row, as a multiple of a plain one's: as
        measured with the nearest number of rows where both are known. Where they are not, a guess
        by what is known of other windows. Infinite where plain steps of so many rows are to be
        measured yet.
        """
        rows = _about(rows)
        measured = self._measured(rows, window)
        if measured is not None:
            return measured
        if window == CUT:
            return 1.0
        token = _GUESSED if self._known(rows, PLAIN) else math.inf  # the cost of one more
        for other in sorted(WINDOWS[1:], key=lambda other: abs(other - window)):
            measured = self._measured(rows, other)
            if measured is not None:
                token = max(measured - 1.0, 0.0) / (other - 1)
                break
        return 1.0 + token * (window - 1)

    def _measured(self, rows: int, window: int) -> float | None:
        known = [
            count
            for count, size in self._kinds
            if size == window and self._known(count, window) and self._known(count, PLAIN)
        ]
        if not known:
            return None
        nearest = min(known, key=lambda count: abs(count - rows))
        cost = self._kinds[nearest, window].usual / self._kinds[nearest, PLAIN].usual
        return max(1.0, cost)  # less is what others on the machine have made of it

    def _known(self, rows: int, window: int) -> bool:
        kind = self._kinds.get((rows, window))
        return kind is not None and len(kind.seconds) >= _ENOUGH and self._fresh(kind, window)

    def _fresh(self, kind: _Kind, window: int) -> bool:
        return self._steps - kind.last < (_OLD_PLAIN if window == PLAIN else _OLD)


def _about(rows: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16 …: steps of so many rows cost nearly the same."""
    power = 1 << max(rows - 1, 1).bit_length()
    return rows if rows < 3 else power * 3 // 4 if rows <= power * 3 // 4 else power
