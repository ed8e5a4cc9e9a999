"""Prefixes on their way from the cache of one memory to that of another."""

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from baton.engine.handoff.prefix_share import Loan, PrefixShare
from baton.engine.request.request import Reservation
from baton.engine.settings.counters import Counters
from baton.engine.tiers.block_copier import BlockCopier
from baton.engine.tiers.copy_thread import Copy

log = logging.getLogger(__name__)

_numbers = count(1)


def next_name() -> str:
    """Return a name for a reservation, which no request and no other copy has."""
    return f"tier-{next(_numbers)}"


@dataclass(eq=False)
class PrefixCopy:
    """A prefix that one cache lends, and that is copied for another."""

    key: bytes  # of its tokens, see `token_key`
    salt: bytes
    loan: Loan
    reservation: Reservation | None = None  # None: it waits for a step to be over
    copy: Copy | None = None  # once there is a reservation
    name: str = field(default_factory=next_name)  # the reservation's

    @property
    def over(self) -> bool:
        return self.copy is not None and self.copy.done.done()


class CopyRoute:
    """The way of prefixes from one cache into another, by a copier of its own."""

    def __init__(
        self, source: PrefixShare, target: PrefixShare, copier: BlockCopier, counters: Counters
    ) -> None:
        """counters: the engine's."""
        self.source, self.target = source, target
        self._copier, self._counters = copier, counters
        self.on_done: Callable[[], None] = lambda: None
        """Called on another thread when a copy is done, and `end` has something to do."""

    def reserve(self, each: PrefixCopy, headroom: int) -> bool:
        """Reserve memory for what has been lent, `headroom` pages staying free beside it, and begin
        to copy. False: there is no room now."""
        tokens, reservations = each.loan.state.tokens, self.target.reservations
        found = reservations.reserve(each.name, tokens, headroom, each.key, each.salt)
        if found is not None:
            each.reservation, each.copy = found, self._begin(each.loan, found)
        return found is not None

    def _begin(self, loan: Loan, reservation: Reservation) -> Copy:
        lent, reserved = loan.state, reservation.state
        known = len(reserved.pages) - len(reservation.owned)
        slots = [(lent.slot, reserved.slot)] if self.source.pools.stateful else []
        pages = zip(lent.pages[known:], reservation.owned, strict=True)
        return self._copier.start(slots, list(pages), lambda: self.on_done())

    def end(self, each: PrefixCopy) -> bool:
        """Give back what was lent, and take over what was copied. False: it is not whole."""
        self.source.give_back(each.loan)
        if each.copy is None or each.reservation is None:
            return False
        self._counters.host_failures += each.copy.done.exception() is not None
        return take_over(self.target, each.reservation, each.key, each.copy)

    def close(self) -> None:
        """Take nothing more, and wait a while for the end of what was begun."""
        self._copier.close()


def take_over(share: PrefixShare, reservation: Reservation, key: bytes, copy: Copy) -> bool:
    """Give a cache the prefix `key` that an ended copy has written into the reservation, or free
    it where it is not whole; return which."""
    error = copy.done.exception()
    if error is not None:
        log.warning("a prefix was not copied: %s: %s", type(error).__name__, error)
    if error is not None or copy.done.result() is None:
        share.reservations.abandon(reservation)
        return False
    share.keep(reservation, array("i", key))
    return True
