"""One hand-off by NIXL, as its task sees it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.transfer.channel import OnMoving
from baton.transfer.errors import ChannelError
from baton.transfer.regions import Holder
from baton.transfer.segments import Segment
from baton.transfer.tickets import Claim, Received
from baton.transfer.writer_lease import WriterLease

SizeOf = Callable[[Segment], int]
"""Payload bytes."""
MOST_PENDING = 8
"""Segments of one hand-off that may wait or be in flight."""


@dataclass(frozen=True, eq=False)
class Post:
    """One segment to write."""

    writing: "NixlWriting"
    segment: Segment
    source: Holder


class Poster(Protocol):
    """The connection, as its writings see it."""

    def post(self, post: Post) -> None: ...

    def sever(self, why: ChannelError) -> None: ...


class NixlWriting:
    """All but `refusal` is called on the loop's thread."""

    def __init__(
        self,
        poster: Poster,
        claim: Claim,
        target: Holder,
        on_moving: OnMoving,
        lease: WriterLease,
        lease_s: float,
        size_of: SizeOf,
    ) -> None:
        self.claim = claim
        self.target = target
        self._poster = poster
        self._on_moving = on_moving
        self._lease = lease
        self._lapses = lease.lapses
        self._lease_s = lease_s
        self._size_of = size_of
        self._pending = 0
        self._sent = Received(0, 0, 0)
        self._error: ChannelError | None = None
        self._cancelled = False
        self._changed = asyncio.Event()

    async def write(self, segment: Segment, holder: Holder) -> None:
        self._raise_if_over()
        if not self._pending:
            self._on_moving(True, self._sent.segments)
        self._pending += 1
        size = self._size_of(segment)
        self._sent = self._sent.plus(segment.kind, size)
        self._poster.post(Post(self, segment, holder))
        await self._until(MOST_PENDING)

    async def flush(self) -> None:
        await self._until(0)

    async def finish(self) -> Received:
        """What was sent: the receiver's own count follows from its notifications."""
        await self._until(0)
        return self._sent

    def cancel(self) -> None:
        self._cancelled = True

    async def drained(self) -> None:
        try:
            async with asyncio.timeout(self._lease_s):
                await self._settled(0)
        except TimeoutError:
            self._poster.sever(ChannelError("a cancelled write did not end within a lease"))
            await self._settled(0)

    def refusal(self) -> ChannelError | None:
        """Why nothing may be posted now. From any thread."""
        if self._cancelled:
            return ChannelError("the write was cancelled")
        if not self._lease.allows(self._lapses):
            return ChannelError(
                "this worker was held up, or heard nothing, past the lease of its ticket: it may "
                "not write under it any more"
            )
        return None

    def ended(self, post: Post, error: ChannelError | None) -> None:
        """One of its posts is there, or never will be."""
        self._pending -= 1
        self._error = self._error or error
        if not self._pending:
            self._on_moving(False, self._sent.segments)
        self._changed.set()

    async def _until(self, most: int) -> None:
        """At most so many pending. Raises ChannelError."""
        self._raise_if_over()
        while self._pending > most:
            pending = self._pending
            try:
                async with asyncio.timeout(self._lease_s):
                    await self._settled(pending - 1)
            except TimeoutError:
                self.cancel()
                raise ChannelError(
                    f"no write was done for {self._lease_s:g} s; check UCX_TLS and the network "
                    "between the two workers"
                ) from None
            self._raise_if_over()

    async def _settled(self, most: int) -> None:
        while self._pending > most:
            self._changed.clear()
            await self._changed.wait()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._cancelled:
            raise ChannelError("the write was cancelled")
