"""The owners of slots and pages."""

from collections.abc import Mapping
from enum import StrEnum


class Owner(StrEnum):
    """Every slot and page is free or owned exactly once, by one of these."""

    FREE = "free"
    LIVE = "live"  # a request that runs
    TRACK = "track"  # a snapshot that a planned step may write
    CACHE = "cache"  # the prefix cache
    TICKET = "ticket"  # reserved for a peer's writes
    TRANSFER = "transfer"  # a request that is handed off: a transfer may be reading it
    QUARANTINE = "quarantine"  # a cancelled ticket whose writer is not proved quiet


def held_by_requests(owned: Mapping[Owner, int]) -> int:
    """Return how many slots or pages requests hold, on their way or in quarantine too. What is
    cached gives way to them.
    """
    free = owned.get(Owner.FREE, 0) + owned.get(Owner.CACHE, 0)
    return sum(owned.values()) - free


def used(owned: Mapping[Owner, int]) -> int:
    """Return how many slots or pages are not free."""
    return sum(owned.values()) - owned.get(Owner.FREE, 0)


def held_share(owned: Mapping[Owner, int]) -> float:
    """Return the share of a pool that requests hold."""
    every = sum(owned.values())
    return held_by_requests(owned) / every if every else 0.0
