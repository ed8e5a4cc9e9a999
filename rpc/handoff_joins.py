"""Messages of one hand-off stream that wait to be sent at the same time, as one message.

A message costs sender and receiver 0.1 to 0.3 ms of processor time each, however short it is, and
those of a step's hand-offs come together.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from baton.proto.common_pb2 import Hello
from baton.proto.handoff_pb2 import (
    DecodeMessage,
    DecodeMessages,
    PrefillMessage,
    PrefillMessages,
)
from baton.proto.version import PROTOCOL_MINOR

_JOINS_MINOR = 2  # the first minor version of the protocol that reads several messages from one
MOST_BYTES = 256 << 10
"""Bytes of the messages in one: more would hold the event loop for long. A longer one is sent by
itself."""

M = TypeVar("M", DecodeMessage, PrefillMessage)


def joins(theirs: Hello) -> bool:
    """Return True if this process and the peer that sent `theirs` both know joined messages."""
    return min(PROTOCOL_MINOR, theirs.protocol_minor) >= _JOINS_MINOR


def join_to_prefill(messages: Sequence[DecodeMessage]) -> Iterator[DecodeMessage]:
    """Yield a rank's messages in their order, as few."""
    for run in _runs(messages):
        yield run[0] if len(run) == 1 else DecodeMessage(several=DecodeMessages(messages=run))


def join_to_rank(messages: Sequence[PrefillMessage]) -> Iterator[PrefillMessage]:
    """Yield a prefill worker's messages in their order, as few."""
    for run in _runs(messages):
        yield run[0] if len(run) == 1 else PrefillMessage(several=PrefillMessages(messages=run))


def parts_of(message: M) -> Sequence[M]:
    """Return the messages that were joined, or the one that was not."""
    return message.several.messages if message.HasField("several") else (message,)


def _runs(messages: Sequence[M]) -> Iterator[list[M]]:
    """Yield neighbours of at most MOST_BYTES together."""
    run: list[M] = []
    nbytes = 0
    for message in messages:
        size = message.ByteSize()
        if run and nbytes + size > MOST_BYTES:
            yield run
            run, nbytes = [], 0
        run.append(message)
        nbytes += size
    yield run
