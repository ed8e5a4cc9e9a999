"""The parts of a byte run, or of a run of tokens in each layer, that have arrived."""

from bisect import bisect_left


class Coverage:
    """Disjoint runs [start, end), merged where they touch."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def overlap(self, start: int, end: int) -> tuple[int, int] | None:
        """Return a run that overlaps [start, end), or None."""
        at = bisect_left(self._runs, (start, start))
        for run in self._runs[max(0, at - 1) : at + 1]:
            if run[0] < end and start < run[1]:
                return run
        return None

    def add(self, start: int, end: int) -> None:
        """Add [start, end). It must not overlap what has been added."""
        at = bisect_left(self._runs, (start, end))
        low = high = at
        if at > 0 and self._runs[at - 1][1] == start:
            low, start = at - 1, self._runs[at - 1][0]
        if at < len(self._runs) and self._runs[at][0] == end:
            high, end = at + 1, self._runs[at][1]
        self._runs[low:high] = [(start, end)]

    def covers(self, start: int, end: int) -> bool:
        """Return True when exactly [start, end) has been added."""
        return self._runs == ([(start, end)] if start < end else [])

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self._runs)


class LayeredCoverage:
    """The tokens that have arrived in each attention layer."""

    def __init__(self, layers: int) -> None:
        self._layers = [Coverage() for _ in range(layers)]

    def overlap(self, start: int, end: int, layers: tuple[int, int]) -> tuple[int, int] | None:
        """Return a run of some layer of `layers` that overlaps tokens [start, end), or None.

        layers: [first, end).
        """
        found = (layer.overlap(start, end) for layer in self._layers[slice(*layers)])
        return next((run for run in found if run is not None), None)

    def add(self, start: int, end: int, layers: tuple[int, int]) -> None:
        """Add tokens [start, end) of `layers`. They must not overlap what has been added."""
        for layer in self._layers[slice(*layers)]:
            layer.add(start, end)

    def covers(self, start: int, end: int) -> bool:
        """Return True when exactly [start, end) has been added in every layer."""
        return all(layer.covers(start, end) for layer in self._layers)

    @property
    def totals(self) -> list[int]:
        """Return the number of tokens of each layer."""
        return [layer.total for layer in self._layers]
