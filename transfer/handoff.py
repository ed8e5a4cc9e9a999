"""The states of one hand-off, on both of its sides.

    queued ──► scheduled ──► reserved ──► writing ──► complete ──► active
                   └─────────(ended at its first token)───┘

From every state but `active` a hand-off may become failed, cancelled or expired. Where the peer may
still write into the reserved memory, it first becomes `quarantined`, until there is proof that the
peer no longer writes. The prefill worker's side ends at `complete`, the decode rank's at `active`.
"""

from collections.abc import Callable
from enum import StrEnum

from baton.core.handoff_ids import HandoffId
from baton.transfer.state_machine import StateMachine


class HandoffState(StrEnum):
    """A state of one hand-off."""

    QUEUED = "queued"  # sent to the prefill worker: no chunk is planned yet
    SCHEDULED = "scheduled"  # its first chunk is planned; a destination is wanted
    RESERVED = "reserved"  # a ticket is granted
    WRITING = "writing"  # bytes are being written
    COMPLETE = "complete"  # every byte has arrived, or it ended at its first token
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
"""All allowed moves. A hand-off goes from reserved straight to complete if the request ended at its
first token after all; the ticket is then given back unused."""

OnMove = Callable[["Handoff", HandoffState, HandoffState, str], None]
"""(hand-off, from, to, reason): counts and logs the move."""


class Handoff:
    """The state of one hand-off, named by its id. Used by one thread."""

    def __init__(self, name: HandoffId, on_move: OnMove) -> None:
        self.name = name
        self._machine = StateMachine(
            f"hand-off {name}",
            ALLOWED,
            HandoffState.QUEUED,
            lambda source, to, reason: on_move(self, source, to, reason),
        )

    @property
    def state(self) -> HandoffState:
        return self._machine.state

    @property
    def over(self) -> bool:
        """True if no move is left. `complete` is not over: the decode rank has one more move."""
        return self._machine.is_final

    @property
    def over_for_sender(self) -> bool:
        """True if the prefill worker has no move left: its side ends at `complete`."""
        return self.over or self.state is HandoffState.COMPLETE

    def move(self, to: HandoffState, reason: str = "") -> None:
        """Change the state. Raise MoveError, unchanged, if the table has no such move."""
        self._machine.move(to, reason)
