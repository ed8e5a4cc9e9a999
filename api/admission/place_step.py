"""The stages of one request at a router's door, and their moves.

    waiting ──► called ──► placed ──► on rank
       ▲          │  └────────┼──────────▲ │
       └──────────┴───────────┴────────────┘ no worker has it any more

From every stage but `left` a request may become `left`.
"""

from collections.abc import Mapping
from enum import StrEnum

from baton.core.errors import InvariantError


class PlaceStep(StrEnum):
    """A stage of one request."""

    WAITING = "waiting"  # in the queue
    CALLED = "called"  # its turn has come, and it has no worker yet
    PLACED = "placed"  # a prefill worker has its prompt
    ON_RANK = "on_rank"  # its first token came, or its rank computes the prompt
    LEFT = "left"  # it has ended, or was refused


_S = PlaceStep

ALLOWED: Mapping[PlaceStep, frozenset[PlaceStep]] = {
    _S.WAITING: frozenset({_S.CALLED, _S.LEFT}),
    _S.CALLED: frozenset({_S.PLACED, _S.ON_RANK, _S.WAITING, _S.LEFT}),
    _S.PLACED: frozenset({_S.ON_RANK, _S.WAITING, _S.LEFT}),
    _S.ON_RANK: frozenset({_S.WAITING, _S.LEFT}),
    _S.LEFT: frozenset(),
}
"""All allowed moves. Back to waiting: its workers were lost, or gave it back."""


def moved(source: PlaceStep, to: PlaceStep) -> PlaceStep:
    """Return `to`. Raise InvariantError if the table has no such move."""
    if to not in ALLOWED[source]:
        allowed = ", ".join(sorted(ALLOWED[source])) or "none, the stage is final"
        raise InvariantError(
            f"a request in the queue cannot go from {source} to {to}; allowed: {allowed}"
        )
    return to
