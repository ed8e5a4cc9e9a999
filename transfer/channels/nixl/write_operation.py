"""One hand-off by NIXL, as the task that writes it uses it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.core.state_ref import StateRef
from baton.transfer.channels.ends import OnMoving
from baton.transfer.channels.writer_lease import WriterLease
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment
from baton.transfer.tickets import Claim, Received

SizeOf = Callable[[Segment], int]
"""Returns a segment's payload bytes."""
REST_S = 0.02
"""Seconds without a post after which the receiver is told that nothing is under way: until then it
looks for the next one. Telling it costs both sides more than looking does."""
MOST_PENDING = 8
"""Segments of one hand-off that may wait or be in flight."""


@dataclass(frozen=True, eq=False)
class Post:
    """One segment to write."""

    writing: "NixlWriteOperation"
    segment: Segment
    source: StateRef


class Poster(Protocol):
    """The part of a connection that its write operations use."""

    def post(self, post: Post) -> None: ...

    def sever(self, why: ChannelError) -> None: ...


class NixlWriteOperation:
    """One hand-off's writes. Every method except `refusal` is called on the loop's thread."""

    def __init__(
        self,
        poster: Poster,
        claim: Claim,
        target: StateRef,
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
        self._told = False  # the receiver was told that posts are under way
        self._resting: asyncio.TimerHandle | None = None

    async def write(self, segment: Segment, holder: StateRef) -> None:
        self._raise_if_over()
        if self._resting is not None:
            self._resting.cancel()
        if not self._told:
            self._told = True
            self._on_moving(True, self._sent.segments)
        self._pending += 1
        size = self._size_of(segment)
        self._sent = self._sent.plus(segment.kind, size)
        self._poster.post(Post(self, segment, holder))
        await self._until(MOST_PENDING)

    async def flush(self) -> None:
        await self._until(0)

    async def finish(self) -> Received:
        """Wait for every write, and return what was sent.

        The receiver counts by itself, from the notifications.
        """
        await self._until(0)
        self._rest()
        return self._sent

    def cancel(self) -> None:
        self._cancelled = True
        if not self._pending:
            self._rest()

    async def drained(self) -> None:
        try:
            async with asyncio.timeout(self._lease_s):
                await self._settled(0)
        except TimeoutError:
            self._poster.sever(ChannelError("a cancelled write did not end within a lease"))
            await self._settled(0)

    def refusal(self) -> ChannelError | None:
        """Return why nothing may be posted now, or None. Called on any thread."""
        if self._cancelled:
            return ChannelError("the write was cancelled")
        if not self._lease.allows(self._lapses):
            return ChannelError(
                "this worker was suspended, or heard nothing from its peer, past the lease of its "
                "ticket: it may not write under that ticket any more"
            )
        return None

    def ended(self, post: Post, error: ChannelError | None) -> None:
        """Count one post as ended: its bytes have arrived, or never will (`error`)."""
        self._pending -= 1
        self._error = self._error or error
        if not self._pending:
            if self._cancelled or self._error is not None:
                self._rest()
            else:
                self._resting = asyncio.get_running_loop().call_later(REST_S, self._rest)
        self._changed.set()

    def _rest(self) -> None:
        """Tell the receiver that nothing is under way, unless it knows. Nothing is pending."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._told:
            self._told = False
            self._on_moving(False, self._sent.segments)

    async def _until(self, most: int) -> None:
        """Wait until at most `most` posts are pending. Raises ChannelError."""
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
