"""Which parts of a run, or of a run of tokens in each layer, have arrived."""

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


class LayeredCoverage:
    """Tokens of each attention layer: they come for all layers at once, or for some."""

    def __init__(self, layers: int) -> None:
        self._layers = [Coverage() for _ in range(layers)]

    def overlap(self, start: int, end: int, layers: tuple[int, int]) -> tuple[int, int] | None:
        """A run of some layer of [first, end) that shares anything with tokens [start, end)."""
        found = (layer.overlap(start, end) for layer in self._layers[slice(*layers)])
        return next((run for run in found if run is not None), None)

    def add(self, start: int, end: int, layers: tuple[int, int]) -> None:
        """Tokens [start, end) of those layers are here now. They must overlap nothing."""
        for layer in self._layers[slice(*layers)]:
            layer.add(start, end)

    def covers(self, start: int, end: int) -> bool:
        """Whether exactly [start, end) is here, in every layer."""
        return all(layer.covers(start, end) for layer in self._layers)

    @property
    def totals(self) -> list[int]:
        """Tokens of each layer."""
        return [layer.total for layer in self._layers]
