"""The ends that a channel offers.

Push (hand-offs): a `Sender` writes into a peer's memory under a ticket, a `ChannelReceiver` takes
what comes. Pull (prefix reads): a `Reader` copies from a peer's memory, a `Lender` lets it.

In a push the source's memory must not change from `WriteOperation.write` until `flush` or `finish`
returns; after `cancel`, it must not change until `drained` returns.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from baton.core.handoff_ids import TicketId
from baton.core.state_ref import StateRef
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.memory.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

OnBytes = Callable[[Kind, int], None]
"""(kind, bytes): counts bytes that moved, headers included. Called on any thread."""

OnMoving = Callable[[bool, int], None]
"""(posts are under way, segments posted so far): what the sender must tell the receiver over the
control stream. A one-sided receiver polls only while something moves. Called on the loop's
thread."""


class WriteOperation(Protocol):
    """The bytes of one hand-off under way. One task at a time uses it."""

    async def write(self, segment: Segment, holder: StateRef) -> None:
        """Post the segment from `holder`'s memory.

        Returns before the segment has arrived, and waits only while too much is in flight. Raises
        ChannelError, or the error with which the receiver refused. The operation is over then;
        call `cancel` and `drained`, as after a cancel.
        """
        ...

    async def flush(self) -> None:
        """Wait until everything posted has left the source's memory. Raises as `write` does."""
        ...

    async def finish(self) -> Received:
        """Declare that nothing more follows; return what was sent. Raises as `write` does."""
        ...

    def cancel(self) -> None:
        """Stop at once. Nothing is posted after this."""
        ...

    async def drained(self) -> None:
        """Wait, after `cancel`, until nothing of this operation is read here or written there.

        Does not raise, and ends even when the peer is dead or stopped.
        """
        ...


class Sender(Protocol):
    """A connection to one peer's memory. It lives as long as the stream that joins the two."""

    @property
    def link(self) -> LinkRate:
        """Return what was measured of the way to the peer."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Payload bytes of a segment at which the channel is fastest."""
        ...

    def open(
        self, claim: Claim, target: StateRef, on_moving: OnMoving, size: int | None = None
    ) -> WriteOperation:
        """Begin a hand-off into the peer's `target`. Does not wait.

        size: payload bytes of all that will be written; None: not known.
        """
        ...

    def heard(self) -> None:
        """Renew the sender's lease: the peer has said something."""
        ...

    async def lost(self) -> None:
        """Return once no hand-off can be written any more: the caller opens a new stream."""
        ...

    async def close(self) -> None:
        """Cancel every operation and return when all have drained."""
        ...


class ChannelReceiver(Protocol):
    """The receiving end of one channel for the writes of one peer."""

    @property
    def endpoint(self) -> bytes:
        """Return what the peer's `Channel.connect_sender` needs to reach this end."""
        ...

    def chosen(self) -> None:
        """Note that the peer has picked this channel."""
        ...

    def moving(self, ticket: TicketId, under_way: bool, segments: int) -> None:
        """Take the sender's word; see OnMoving. It may be about a ticket that is closed: what a
        cancelled hand-off has under way may need this side in order to end."""
        ...

    async def close(self) -> None:
        """Tear down what ties the peer to this worker's memory, and return when that is done."""
        ...


class Reader(Protocol):
    """A connection that copies from one peer's memory.

    A read changes nothing at the peer. What it brings may be used only after the peer's last word
    that the memory stayed lent during the whole read.
    """

    @property
    def closed(self) -> bool:
        """True when no read can succeed any more: the caller connects anew."""
        ...

    async def read(self, segments: Sequence[Segment], into: StateRef, source: StateRef) -> None:
        """Copy `segments` from the peer's `source` to this worker's `into`.

        However the call ends, nothing is written into `into` after it. Raises ChannelError. The
        reader is closed after an error, and when the caller is cancelled.
        """
        ...

    async def close(self) -> None:
        """End every read, and return when nothing is read any more."""
        ...


class Lender(Protocol):
    """The end that is read from: this worker's memory, for all readers of one channel."""

    @property
    def segment_bytes(self) -> int:
        """Payload bytes of a segment that both sides cut the prefix into."""
        ...

    @property
    def verify(self) -> bool:
        """True when the loan carries a checksum for each segment."""
        ...

    async def endpoint(self) -> bytes:
        """Return what the reader's `Channel.connect_reader` needs. Raises ChannelError."""
        ...

    def lend(self) -> AbstractContextManager[None]:
        """Serve readers while the context is open. Contexts may overlap."""
        ...

    def count(self, segments: Sequence[Segment]) -> None:
        """Count `segments` as sent: a reader has copied them."""
        ...

    async def close(self) -> None:
        """Stop: nothing can be read here after this returns."""
        ...
