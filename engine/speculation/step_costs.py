"""The measured seconds of steps, by how many rows decode and how many tokens each has."""

from collections import deque
from statistics import median

_LATEST = 8  # measurements of a kind of step that are kept
_ENOUGH = 3  # of them before they count
_FIRST = 2  # measurements that are dropped: the first steps of a kind touch memory and record
# Steps after which the cost of a window that is not used is forgotten, so that it is tried again:
# the machine may have been busy.
_OLD = 512
# What a token more in the window is taken to cost, as a part of a plain step, until it is measured:
# little, so that it is tried.
_GUESSED = 0.1


class _Kind:
    """The measurements of steps of one number of rows and one window."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_LATEST)
        self.seen = 0  # steps, those included that were dropped
        self.last = 0  # number of the newest, among all steps


class StepCosts:
    """The seconds of steps without prompts."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._steps = 0

    def add(self, rows: int, window: int, seconds: float) -> None:
        """Note a step of `rows` rows of `window` tokens."""
        kind = self._kinds.setdefault((rows, window), _Kind())
        if not self._fresh(kind, window):
            kind.seconds.clear()
        self._steps += 1
        kind.seen, kind.last = kind.seen + 1, self._steps
        if kind.seen > _FIRST:
            kind.seconds.append(seconds)

    def ratio(self, rows: int, window: int) -> float:
        """Return the cost of a step of `window` tokens a row, as a multiple of a plain one's: as
        measured with the nearest number of rows where both are known, or a guess.
        """
        known = [
            count
            for count, size in self._kinds
            if size == window and self._known(count, window) and self._known(count, 1)
        ]
        if not known:
            return 1.0 + _GUESSED * (window - 1)
        nearest = min(known, key=lambda count: abs(count - rows))
        costs = (median(self._kinds[nearest, size].seconds) for size in (window, 1))
        return next(costs) / next(costs)

    def _known(self, rows: int, window: int) -> bool:
        kind = self._kinds.get((rows, window))
        return kind is not None and len(kind.seconds) >= _ENOUGH and self._fresh(kind, window)

    def _fresh(self, kind: _Kind, window: int) -> bool:
        return window == 1 or self._steps - kind.last < _OLD
