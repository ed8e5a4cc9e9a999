"""The life of one hand-off, the same on both sides.

    queued ──► scheduled ──► reserved ──► writing ──► complete ──► active
                   └─────────(ended at its first token)───┘
    any of them but active ──► failed, cancelled or expired; where a peer may still write
    into reserved memory, through quarantined until there is proof that it will not.

The prefill's side ends at complete, the decode rank's at active.
"""

from collections.abc import Callable
from enum import StrEnum

from baton.transfer.errors import MoveError


class HandoffState(StrEnum):
    QUEUED = "queued"  # the prefill has it, or will have: no chunk is planned yet
    SCHEDULED = "scheduled"  # its first chunk is planned; a destination is wanted
    RESERVED = "reserved"  # a ticket is granted
    WRITING = "writing"  # bytes are under way
    COMPLETE = "complete"  # every byte is there, or it ended at its first token
    ACTIVE = "active"  # the decode rank runs it
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # the peer was silent for a lease
    QUARANTINED = "quarantined"  # over, but a peer may still write into its memory


_S = HandoffState
_OVER = frozenset({_S.FAILED, _S.CANCELLED, _S.EXPIRED})

ALLOWED: dict[HandoffState, frozenset[HandoffState]] = {
    _S.QUEUED: _OVER | {_S.SCHEDULED},
    _S.SCHEDULED: _OVER | {_S.RESERVED, _S.COMPLETE},
    _S.RESERVED: _OVER | {_S.WRITING, _S.COMPLETE, _S.QUARANTINED},
    _S.WRITING: _OVER | {_S.COMPLETE, _S.QUARANTINED},
    _S.COMPLETE: _OVER | {_S.ACTIVE},
    _S.ACTIVE: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.QUARANTINED: _OVER,
}
"""Every move there is. From reserved straight to complete: it ended at its first token after all,
and the ticket is given back unused."""

OnMove = Callable[["Handoff", HandoffState, HandoffState, str], None]
"""(hand-off, from, to, reason): counts and logs the move."""


class Handoff:
    """One hand-off, named by (request_id, attempt). Used by one thread."""

    def __init__(self, request_id: str, attempt: int, on_move: OnMove) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self._state = HandoffState.QUEUED
        self._on_move = on_move

    @property
    def state(self) -> HandoffState:
        return self._state

    @property
    def over(self) -> bool:
        """Whether no move is left. Complete is not over: the decode rank has one more."""
        return not ALLOWED[self._state]

    def move(self, to: HandoffState, reason: str = "") -> None:
        """Raises MoveError, and stays where it is, if the table has no such move."""
        source = self._state
        if to not in ALLOWED[source]:
            allowed = ", ".join(sorted(ALLOWED[source])) or "none: it is over"
            raise MoveError(
                f"hand-off {self.request_id}/{self.attempt} cannot go from {source} to {to}",
                expected=allowed,
                actual=to,
            )
        self._state = to
        self._on_move(self, source, to, reason)
