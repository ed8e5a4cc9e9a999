"""How bytes get from one engine's pools into another's: what every channel offers the writer."""

from collections.abc import Callable
from typing import Protocol

from baton.transfer.regions import Holder
from baton.transfer.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

OnBytes = Callable[[Kind, int], None]
"""(kind, payload bytes): counts what moved. Called on the channel's thread."""


class Writing(Protocol):
    """One hand-off's bytes under way. One task uses it."""

    async def write(self, segment: Segment, holder: Holder) -> None:
        """Send the segment from `holder`'s memory, which may be reused once this returns.

        Raises ChannelError or what the receiver refused it with; then the writing is over.
        """
        ...

    async def finish(self) -> Received:
        """No more follows. What the receiver has, once it has applied it all."""
        ...

    def cancel(self) -> None:
        """Stop at once. Nothing is posted after this."""
        ...


class Channel(Protocol):
    """The writer's end, one a worker."""

    def open(self, address: str, claim: Claim) -> Writing:
        """Begin to write to the worker whose channel listens at `address`. Does not wait."""
        ...

    async def close(self) -> None: ...
