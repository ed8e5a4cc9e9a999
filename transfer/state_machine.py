"""A state machine whose allowed moves are one table."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from baton.transfer.errors import MoveError

S = TypeVar("S", bound=StrEnum)

Moves = Mapping[S, frozenset[S]]
"""The states that may follow each state. A state without followers is final."""

OnMove = Callable[[S, S, str], None]
"""(from, to, reason): called after each move."""


class StateMachine(Generic[S]):
    """The current state of one thing, changed by `move` alone. Used by one thread."""

    def __init__(self, name: str, moves: Moves[S], start: S, on_move: OnMove[S] | None = None):
        """name: what the errors call the thing that has this state."""
        self._name = name
        self._moves = moves
        self._state = start
        self._reason = ""
        self._on_move = on_move

    @property
    def state(self) -> S:
        return self._state

    @property
    def reason(self) -> str:
        """The reason given with the last move."""
        return self._reason

    @property
    def is_final(self) -> bool:
        """True if the table has no move out of the current state."""
        return not self._moves[self._state]

    def move(self, to: S, reason: str = "") -> None:
        """Change the state to `to`. Raise MoveError, unchanged, if the table has no such move."""
        source = self._state
        if to not in self._moves[source]:
            allowed = ", ".join(sorted(self._moves[source])) or "none, the state is final"
            raise MoveError(
                f"{self._name} cannot go from {source} to {to}; allowed: {allowed}",
                expected=allowed,
                actual=to,
            )
        self._state, self._reason = to, reason
        if self._on_move is not None:
            self._on_move(source, to, reason)
