"""The division of one worker's room among the routers that send it requests.

The unit is the worker's own: requests on a decode rank, prompt tokens on a prefill worker. Nothing
here knows of streams or clocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST = 1
"""Units that every router always has: its next request need not wait for a division."""


def divide(total: int, wanted: Sequence[int]) -> list[int]:
    """Divide `total` units, as evenly as what is wanted allows; return each one's part.

    What one does not want goes to those that want more, and what nobody wants to all. Each has
    LEAST at least, even where that is more than `total` together.
    """
    parts = [LEAST] * len(wanted)
    left = _fill(parts, wanted, total - sum(parts))
    _fill(parts, [total] * len(wanted), left)
    return parts


def _fill(parts: list[int], bounds: Sequence[int], left: int) -> int:
    """Raise the lowest parts together, none above its bound, until nothing is left of `left`;
    return what is.
    """
    while left > 0 and (open_ := [i for i, part in enumerate(parts) if part < bounds[i]]):
        level = min(parts[i] for i in open_)
        lowest = [i for i in open_ if parts[i] == level]
        above = [parts[i] for i in open_ if parts[i] > level]
        most = level + max(left // len(lowest), 1)
        step = min(most, *above, *(bounds[i] for i in lowest)) - level
        for i in lowest[: left // step]:
            parts[i] += step
            left -= step
    return left


@dataclass(frozen=True)
class RouterDemand:
    """A router's requests on the worker and for it, in the worker's units."""

    wanted: int  # of those on the worker, and of those that wait for it
    held: int  # of those on the worker
    most: int  # that all routers together may have on the worker
    share: int  # the number of the last share that it has read; 0: none


class RouterShare:
    """One router's part. `number` grows with each change of `units`."""

    def __init__(self, name: str, demand: RouterDemand) -> None:
        self.name = name
        self.demand = demand
        self.units = 0
        self.number = 0
        self.unread: dict[int, int] = {}  # units by number of shares that it may still act on

    @property
    def taken(self) -> int:
        """Return the units that no other router may have now."""
        return max(self.units, self.demand.held, *self.unread.values())

    def change(self, units: int) -> None:
        if units == self.units and self.number:
            return
        self.number += 1
        self.units = units
        self.unread[self.number] = units

    def read(self) -> None:
        """Forget what the router no longer acts on."""
        last = self.demand.share
        self.unread = {number: units for number, units in self.unread.items() if number >= last}


class RouterShares:
    """The shares of the routers with which a worker is registered.

    A share shrinks at once. It grows only by what the others' routers have said that they no longer
    use, so that all together never have more than `most` units and LEAST for each router.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """on_change: called after any share has changed, or a router has come or gone."""
        self._on_change = on_change
        self._shares: list[RouterShare] = []

    @property
    def names(self) -> list[str]:
        """Return the routers' names, ordered."""
        return sorted(share.name for share in self._shares)

    @property
    def divided(self) -> bool:
        """Return True if there is more than one router; one alone has everything."""
        return len(self._shares) > 1

    def join(self, name: str, demand: RouterDemand) -> RouterShare:
        """Add a router."""
        share = RouterShare(name, demand)
        if len(self._shares) == 1:  # it was alone, with everything
            first = self._shares[0]
            first.unread[first.number] = max(first.demand.most, demand.most)
            first.units = 0  # so that its share gets a new number, whose reading ends this
        self._shares.append(share)
        self._divide()
        self._on_change()
        return share

    def leave(self, share: RouterShare) -> None:
        """Remove a router: its requests end with its streams."""
        self._shares.remove(share)
        self._divide()
        self._on_change()

    def heard(self, share: RouterShare, demand: RouterDemand) -> None:
        """Follow what a router says."""
        before = self._numbers()
        share.demand = demand
        share.read()
        self._divide()
        if self._numbers() != before:
            self._on_change()

    def _divide(self) -> None:
        if self.divided:
            shares = self._shares
            total = max(share.demand.most for share in shares)
            targets = divide(total, [share.demand.wanted for share in shares])
            for share, target in zip(shares, targets, strict=True):
                share.change(max(min(share.units, target), LEAST))
            free = total - sum(share.taken for share in shares)
            for share, target in zip(shares, targets, strict=True):
                more = min(target - share.units, free + share.taken - share.units)
                if more > 0:
                    before = share.taken
                    share.change(share.units + more)
                    free -= share.taken - before

    def _numbers(self) -> list[int]:
        return [share.number for share in self._shares]
