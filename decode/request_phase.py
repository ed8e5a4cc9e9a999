"""The phases of one request on a decode rank.

    preparing ──► handoff ◄──► adopting ──► decoding
        │            │            │  └───┐      │
        │            │            │      ▼      ▼
        │            │            │    cancelling
        ▼            ▼            ▼      ▼      ▼
        └────────────┴───────── over ────┴──────┘

`handoff` covers every attempt: when one fails, the next prefill worker is asked in the same phase.
From `adopting` the request returns to `handoff` if the engine refuses what was handed over.
"""

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    """A phase of one request on a decode rank."""

    PREPARING = "preparing"  # its parameters are checked and its grammar is compiled
    HANDOFF = "handoff"  # a prefill worker has it, or soon will
    ADOPTING = "adopting"  # the engine has been asked to take it over
    DECODING = "decoding"  # the engine runs it
    CANCELLING = "cancelling"  # the engine has been asked to end it; its Finished event follows
    OVER = "over"  # its last message is queued for the router


_P = Phase

ALLOWED: Mapping[Phase, frozenset[Phase]] = {
    _P.PREPARING: frozenset({_P.HANDOFF, _P.OVER}),
    _P.HANDOFF: frozenset({_P.ADOPTING, _P.OVER}),
    _P.ADOPTING: frozenset({_P.DECODING, _P.HANDOFF, _P.CANCELLING, _P.OVER}),
    _P.DECODING: frozenset({_P.CANCELLING, _P.OVER}),
    _P.CANCELLING: frozenset({_P.OVER}),
    _P.OVER: frozenset(),
}
"""All allowed moves."""
