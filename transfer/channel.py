"""How bytes get from one engine's pools into another's: what every channel offers.

A rank makes one `Inlet` a prefill worker, and sends its offers with its Hello. The prefill worker
picks one of them, connects, and opens a `Writing` for each hand-off. When the source's memory may
change: not from `write` to the end of `flush` or `finish`; after `cancel`, not until `drained`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from baton.transfer.regions import Holder
from baton.transfer.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

OnBytes = Callable[[Kind, int], None]
"""(kind, bytes): counts what moved, headers included. Called on any thread."""

OnMoving = Callable[[bool, int], None]
"""(whether posts are under way, segments posted so far): what the receiver must be told by the
control stream, since it makes progress only while something moves. Called on the loop's thread."""


class Writing(Protocol):
    """One hand-off's bytes under way. One task at a time uses it."""

    async def write(self, segment: Segment, holder: Holder) -> None:
        """Post the segment from `holder`'s memory. Returns before it has arrived, and waits only
        while too much is in flight.

        Raises ChannelError, or what the receiver refused with; then the writing is over, and
        `cancel` and `drained` follow as they do after a cancel.
        """
        ...

    async def flush(self) -> None:
        """All that was posted has left the source's memory. Raises as `write` does."""
        ...

    async def finish(self) -> Received:
        """No more follows. What the receiver has, once it is all there. Raises as `write` does."""
        ...

    def cancel(self) -> None:
        """Stop at once. Nothing is posted after this."""
        ...

    async def drained(self) -> None:
        """After `cancel`: nothing of this hand-off is read here or written there any more.

        Does not raise, and does not wait for the peer to live.
        """
        ...


class Connection(Protocol):
    """The writer's way to one peer: as long as the stream that joins the two."""

    @property
    def segment_bytes(self) -> int:
        """What one segment should carry: the channel is fastest near it."""
        ...

    def open(self, claim: Claim, target: Holder, on_moving: OnMoving) -> Writing:
        """Begin a hand-off into the peer's `target`. Does not wait."""
        ...

    def heard(self) -> None:
        """The peer has said something: what the writer's lease is counted from."""
        ...

    async def lost(self) -> None:
        """Returns once no hand-off can be written any more: the stream is to be made anew."""
        ...

    async def close(self) -> None:
        """Every writing has been cancelled, and has drained when it returns."""
        ...


class Inlet(Protocol):
    """The receiver's end of one peer's writes: as long as the stream that joins the two."""

    @property
    def offers(self) -> Mapping[str, bytes]:
        """Channel name -> what its writer must know to reach this end."""
        ...

    def chosen(self, channel: str) -> None:
        """The writer has picked this one of the offers."""
        ...

    def bar(self, channel: str) -> None:
        """The writer may not pick this one, and has not yet: it is offered no longer."""
        ...

    @property
    def one_sided(self) -> bool:
        """Bytes may land in a closed ticket's memory: the writer puts them there itself. True
        until a channel is chosen, where any on offer is such a one."""
        ...

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None:
        """The writer's word: see OnMoving. Of a ticket that is closed, too: what a cancelled
        hand-off has under way may need this side to end."""
        ...

    async def close(self) -> None:
        """The end of the stream. What ties the peer to this worker's memory is torn down when it
        returns: nothing is written here any more but by a writer that shares memory with us."""
        ...
