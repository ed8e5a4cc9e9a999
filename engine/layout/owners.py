"""The owners of slots and pages."""

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
