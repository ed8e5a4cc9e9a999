"""The states of the writer of one hand-off, on the prefill worker.

    waiting ──► connecting ──► posting ──► posted ──► flushing ──► released ──► received
       │            │             └──────────┴────┬──────┴────────────┘
       └────────────┴────► stopped ◄── draining ◄─┘

A hand-off that ends early stops its writer. Until the first segment is there, nothing can be under
way, so the writer stops at once. Later it first drains: the channel may still read this
engine's memory and write into the rank's.
"""

from collections.abc import Mapping
from enum import StrEnum


class WriterState(StrEnum):
    """A state of the writer of one hand-off."""

    WAITING = "waiting"  # for a ticket
    CONNECTING = "connecting"  # a ticket is granted; a connection, or the first segment, is awaited
    POSTING = "posting"  # segments are posted as the engine computes them
    POSTED = "posted"  # every segment is posted; Done is not sent yet
    FLUSHING = "flushing"  # Done is sent; the channel may still read the engine's memory
    RELEASED = "released"  # the engine has its memory back; the rank's receipt is awaited
    RECEIVED = "received"  # the rank has every byte
    DRAINING = "draining"  # stopped; the channel may still read and write
    STOPPED = "stopped"  # stopped; nothing is under way


_S = WriterState

ALLOWED: Mapping[WriterState, frozenset[WriterState]] = {
    _S.WAITING: frozenset({_S.CONNECTING, _S.STOPPED}),
    _S.CONNECTING: frozenset({_S.POSTING, _S.STOPPED}),
    _S.POSTING: frozenset({_S.POSTED, _S.DRAINING}),
    _S.POSTED: frozenset({_S.FLUSHING, _S.DRAINING}),
    _S.FLUSHING: frozenset({_S.RELEASED, _S.DRAINING}),
    _S.RELEASED: frozenset({_S.RECEIVED, _S.DRAINING}),
    _S.RECEIVED: frozenset(),
    _S.DRAINING: frozenset({_S.STOPPED}),
    _S.STOPPED: frozenset(),
}
"""All allowed moves."""
