"""Host-side free lists of slot or page ids, with an owner each and a fence on reuse.

Allocation never touches the device. Id 0 is the padding row and is never handed out.

Freed ids carry the sequence number of the last forward that may touch them. Another forward may
take such an id at once (the stream runs forwards in order); a channel, which is outside the
stream's order, only after that forward has completed.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from baton.core.errors import InvariantError
from baton.engine.layout.owners import Owner

# Looking a member up in its enum costs as much as popping an id.
_FREE, _TICKET = Owner.FREE, Owner.TICKET


class IdPool:
    """Ids 1 .. `size` - 1. All operations are O(1) an id."""

    def __init__(self, size: int, what: str) -> None:
        if size < 1:
            raise InvariantError(f"a pool of {what}s needs at least the padding {what}; got {size}")
        self.size = size
        self.what = what
        self._owner: list[Owner] = [Owner.FREE] * size
        self._ready: list[int] = list(range(size - 1, 0, -1))
        self._fenced: deque[tuple[int, int]] = deque()  # (sequence, id), sequence non-decreasing
        self._group: list[int] | None = None
        self._completed = 0
        self._counts = dict.fromkeys(Owner, 0) | {_FREE: size - 1}  # without the padding row

    @property
    def available(self) -> int:
        """Ids that a forward could take now."""
        grouped = len(self._group) if self._group is not None else 0
        return len(self._ready) + len(self._fenced) + grouped

    @property
    def available_to_channels(self) -> int:
        """Ids that no forward in flight may still touch."""
        return len(self._ready)

    def owner(self, ident: int) -> Owner:
        return self._owner[ident]

    def take(self, owner: Owner) -> int | None:
        """Take one id for `owner`. None when the pool has none that `owner` may have."""
        if (self._group or self._fenced) and owner is not _TICKET:
            ident = self._group.pop() if self._group else self._fenced.popleft()[1]
        elif self._ready:
            ident = self._ready.pop()
        else:
            return None
        self._owner[ident] = owner
        self._counts[_FREE] -= 1
        self._counts[owner] += 1
        return ident

    def take_many(self, count: int, owner: Owner) -> list[int] | None:
        """Take `count` ids for `owner`. None, and nothing taken, when there are too few."""
        have = self.available_to_channels if owner is Owner.TICKET else self.available
        if have < count:
            return None
        taken = [self.take(owner) for _ in range(count)]
        return [ident for ident in taken if ident is not None]

    def move(self, ident: int, source: Owner, target: Owner) -> None:
        """Hand `ident` from one owner to another: donation, activation, quarantine."""
        if not 0 < ident < self.size or self._owner[ident] is not source:
            raise self._misplaced(ident, source)
        if target is _FREE:
            raise InvariantError(f"{self.what} {ident} is freed by free(), not by move()")
        self._owner[ident] = target
        self._counts[source] -= 1
        self._counts[target] += 1

    def free(self, ident: int, source: Owner, after: int = 0) -> None:
        """Give `ident` back. `after`: the last forward's sequence number that may touch it."""
        if not 0 < ident < self.size or self._owner[ident] is not source:
            raise self._misplaced(ident, source)
        self._owner[ident] = _FREE
        self._counts[source] -= 1
        self._counts[_FREE] += 1
        if after > self._completed:
            self._fenced.append((after, ident))
        else:
            self._ready.append(ident)

    def free_many(self, idents: Iterable[int], source: Owner, after: int = 0) -> None:
        for ident in idents:
            self.free(ident, source, after)

    def complete(self, sequence: int) -> None:
        """Lift the fences of forward `sequence` and of all before it: they have finished on the
        device.
        """
        self._completed = max(self._completed, sequence)
        while self._fenced and self._fenced[0][0] <= self._completed:
            self._ready.append(self._fenced.popleft()[1])

    @contextmanager
    def group(self, count: int) -> Iterator[None]:
        """Set aside up to `count` ids; single takes inside draw from them.

        Leftovers return at the end, on every way out.
        """
        if self._group is not None:
            raise InvariantError(f"an allocation group of {self.what}s is open already")
        cut = max(0, len(self._ready) - count)
        self._group = self._ready[cut:]
        del self._ready[cut:]
        try:
            yield
        finally:
            self._ready += self._group
            self._group = None

    def counts(self) -> dict[Owner, int]:
        """Return how many ids each owner has, without the padding row."""
        return dict(self._counts)

    def check(self) -> None:
        """Check that free and owned ids make up the pool, none twice. Raises InvariantError."""
        free = self._ready + [ident for _, ident in self._fenced] + (self._group or [])
        if len(set(free)) != len(free):
            twice = [ident for ident, n in Counter(free).items() if n > 1]
            raise InvariantError(f"{self.what}s free twice: {twice}")
        if 0 in free:
            raise InvariantError(f"the padding {self.what} is in the free list")
        marked = {i for i in range(1, self.size) if self._owner[i] is Owner.FREE}
        if marked != set(free):
            raise InvariantError(
                f"{self.what}s lost or aliased: marked free and not in a free list "
                f"{sorted(marked - set(free))}, in a free list and owned "
                f"{sorted(set(free) - marked)}"
            )
        if any(sequence <= self._completed for sequence, _ in self._fenced):
            raise InvariantError(f"{self.what}s are fenced by a forward that has completed")
        counted = Counter(self._owner[1:])
        if any(counted[owner] != count for owner, count in self._counts.items()):
            raise InvariantError(f"{self.what}s by owner are {counted}, counted as {self._counts}")

    def _misplaced(self, ident: int, source: Owner) -> InvariantError:
        if not 0 < ident < self.size:
            return InvariantError(
                f"{self.what} {ident} is outside 1 .. {self.size - 1}; {source} gave it back"
            )
        return InvariantError(
            f"{self.what} {ident} belongs to {self._owner[ident]}, not to {source}"
        )
