"""The times of decode steps by the number of requests in them, as far as this router saw."""

from collections.abc import Sequence

WEIGHT = 1 / 16
"""The weight of a new step in the mean of its number of requests."""
MOST_ROWS = 1024
"""Larger steps count as this one."""
OUTLIER = 4.0
"""A step that took longer than so many means was held up by something else; it counts as that."""
FIT_EVERY = 64
"""Steps after which the line is drawn anew."""
FULL_COUNT = 64
"""A mean of so many steps has its full weight in the line."""


class DecodeStepTimes:
    """The times of steps while several API keys had requests, and of those while one had.

    A line goes through the mean times of the first kind: a step has a cost of its own, and one for
    each row. Keys slow each other down by more than rows: by prompts that are read meanwhile, on
    a CPU by the cores and the memory bandwidth that they share. So steps of the second kind are
    not on the line; how far they lie below it is learned.

    Ranks of one cluster are alike, so all of them add to one line.
    """

    def __init__(self) -> None:
        self.shared = False
        """True while several keys have requests under way."""
        self._means: dict[int, tuple[float, int]] = {}  # seconds and steps, by rows
        self._alone: dict[int, tuple[float, int]] = {}  # the same of steps of one key
        self._new = 0
        self._line: tuple[float, float] | None = None  # seconds of a step, and of each row
        self._part = 1.0  # a step of one key takes this part of what the line says

    def add(self, rows: int, seconds: float) -> None:
        """Add one step of `rows` requests."""
        rows, means = min(rows, MOST_ROWS), self._means if self.shared else self._alone
        new_size = rows not in means
        _add(means, rows, seconds)
        self._new += 1
        if self._new >= FIT_EVERY or (self._line is None and new_size):
            self._new = 0
            self._line = _line_through(self._means) or _line_through({**self._alone, **self._means})
            self._part = self._part_alone()

    def seconds(self, rows: float) -> float | None:
        """Return the expected time of a step that several keys share; None while too little is
        known."""
        if self._line is None:
            return None
        own, each = self._line
        return own + each * rows

    def seconds_alone(self, rows: float) -> float | None:
        """Return the expected time of a step while only one key has requests."""
        shared = self.seconds(rows)
        return None if shared is None else self._part * shared

    def _part_alone(self) -> float:
        if self._line is None or not self._alone:
            return 1.0
        expected = found = 0.0
        for rows, (mean, count) in self._alone.items():
            weight = min(count, FULL_COUNT)
            expected += weight * (self.seconds(rows) or mean)
            found += weight * mean
        return min(found / expected, 1.0)


class StepClock:
    """The times between the steps of one rank, from the messages that bring their tokens."""

    def __init__(self, times: DecodeStepTimes) -> None:
        self._times = times
        self._last: tuple[int, float] | None = None  # its first request, and when it came

    def step(self, handles: Sequence[int], more: int, now: float) -> None:
        """Record a message with one token for each of `handles`, and for `more` other requests.

        Two steps are known to follow each other if the first request of the one is that of the
        other. A message may have several steps, where this router was slow to read; it does not
        count.
        """
        if not handles:
            self._last = None
            return
        first = handles[0]
        if self._last is not None and self._last[0] == first and handles.count(first) == 1:
            self._times.add(len(handles) + more, now - self._last[1])
        self._last = first, now

    def skip(self) -> None:
        """Leave out a step: it had more to do than the requests that its message names."""
        self._last = None


def _add(means: dict[int, tuple[float, int]], rows: int, seconds: float) -> None:
    mean, count = means.get(rows, (seconds, 0))
    seconds = min(seconds, OUTLIER * mean)
    count += 1
    means[rows] = mean + (seconds - mean) * max(WEIGHT, 1 / count), count


def _line_through(means: dict[int, tuple[float, int]]) -> tuple[float, float] | None:
    """Return the line of least squares, which does not fall; None for means that lie too close
    together."""
    if len(means) < 2 or max(means) < 2 * min(means):
        return None
    weights = {rows: min(count, FULL_COUNT) for rows, (_, count) in means.items()}
    total = sum(weights.values())
    rows_mean = sum(weight * rows for rows, weight in weights.items()) / total
    mean = sum(weights[rows] * seconds for rows, (seconds, _) in means.items()) / total
    spread = sum(weight * (rows - rows_mean) ** 2 for rows, weight in weights.items())
    together = sum(
        weights[rows] * (rows - rows_mean) * (seconds - mean)
        for rows, (seconds, _) in means.items()
    )
    each = max(together / spread, 0.0)
    own = mean - each * rows_mean
    return (own, each) if own > 0 else (0.0, mean / rows_mean)
