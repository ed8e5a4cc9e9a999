"""Which parts of a run have arrived."""

from bisect import bisect_left


class Coverage:
    """Disjoint runs [start, end), merged where they touch: one run when all arrives in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def overlap(self, start: int, end: int) -> tuple[int, int] | None:
        """A run that shares anything with [start, end)."""
        at = bisect_left(self._runs, (start, start))
        for run in self._runs[max(0, at - 1) : at + 1]:
            if run[0] < end and start < run[1]:
                return run
        return None

    def add(self, start: int, end: int) -> None:
        """[start, end) is here now. It must overlap nothing."""
        at = bisect_left(self._runs, (start, end))
        low = high = at
        if at > 0 and self._runs[at - 1][1] == start:
            low, start = at - 1, self._runs[at - 1][0]
        if at < len(self._runs) and self._runs[at][0] == end:
            high, end = at + 1, self._runs[at][1]
        self._runs[low:high] = [(start, end)]

    def covers(self, start: int, end: int) -> bool:
        """Whether exactly [start, end) is here."""
        return self._runs == ([(start, end)] if start < end else [])

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self._runs)
