"""The roles of a worker."""

from enum import StrEnum


class Role(StrEnum):
    """The part that a worker has in serving requests."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"  # one engine that answers its own clients; it takes no part in hand-offs


ROUTED_ROLES = (Role.PREFILL, Role.DECODE)
"""The roles of the workers that register with a router."""
