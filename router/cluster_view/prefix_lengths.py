"""The lengths of the prefixes that a map has, so that only these are looked up."""

from bisect import bisect_left


class PrefixLengths:
    """A multiset of lengths that are seldom new: most prefixes end on one grid."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}  # entries of each length
        self._rising: list[int] | None = []  # the lengths, sorted; None: they have changed

    def add(self, length: int) -> None:
        """Add an entry."""
        if length in self._count:
            self._count[length] += 1
        else:
            self._count[length] = 1
            self._rising = None

    def remove(self, length: int) -> None:
        """Remove an entry of a length that has one."""
        self._count[length] -= 1
        if not self._count[length]:
            del self._count[length]
            self._rising = None

    def below(self, bound: int) -> list[int]:
        """Return the lengths below `bound`, rising."""
        if self._rising is None:
            self._rising = sorted(self._count)
        return self._rising[: bisect_left(self._rising, bound)]
