"""The reading end of NIXL: fetches prefixes from one peer's pools.

A read changes nothing at the peer. The worker uses the bytes only after the peer has confirmed that
the memory was lent during the whole read, so a reader that was suspended does no harm. The reader's
own memory may be given away only after its reads have ended; `read` waits for that, also when it
fails.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.state_ref import StateRef
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.poller import Work
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment

READS = 4
"""Reads in flight at once."""


@dataclass(frozen=True, eq=False)
class _Read:
    segment: Segment
    into: StateRef
    source: StateRef
    ended: "asyncio.Future[None]"


class NixlReader:
    """A connection to one lender. It posts on the poller's thread; all else is on the loop's."""

    def __init__(self, peer: NixlPeer, context: ChannelContext) -> None:
        self._peer: NixlPeer | None = peer
        self._context = context
        self._poller = context.poller
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Read] = deque()
        self._posted: dict[int, _Read] = {}  # by the read's number; the poller's thread has it
        self.closed = False  # of no more use

    async def read(self, segments: Sequence[Segment], into: StateRef, source: StateRef) -> None:
        """Copy `segments` of `source` into `into`.

        Nothing is written into `into` after this has returned or raised. Raises ChannelError. The
        reader is closed after an error, and when the caller is cancelled.
        """
        peer = self._peer
        if self.closed or peer is None:
            raise ChannelError("the connection was closed")
        parts = (part for segment in segments for part in peer.parts(segment))
        reads = [_Read(part, into, source, self._loop.create_future()) for part in parts]
        whole = False
        try:
            self._waiting.extend(reads)
            self._poller.wake(self)
            async with asyncio.timeout(self._context.lease_s):
                for read in reads:
                    await read.ended
            whole = True
        except TimeoutError:
            raise ChannelError(
                f"a read was not done within {self._context.lease_s:g} s; check UCX_TLS and the "
                "network between the two workers"
            ) from None
        finally:
            if not whole:
                await self.close()

    async def close(self) -> None:
        """End every read, and return when nothing is read any more."""
        self.closed = True
        dropped = self._loop.create_future()
        self._poller.call(lambda: self._drop(ChannelError("the connection was closed"), dropped))
        await dropped

    def poll(self) -> Work:
        """Collect ended reads and post new ones. Called on the poller's thread."""
        if self._peer is None:
            return Work.NONE
        agent = self._peer.agent
        done = [number for number in self._posted if agent.done(number)]
        for number in done:
            nbytes = self._peer.ended(number)
            self._end(self._posted.pop(number), nbytes)
        moved = bool(done)
        while self._waiting and len(self._posted) < READS and not self._peer.full:
            read = self._waiting[0]  # one that cannot be posted ends with the others
            self._posted[self._peer.fetch(read.segment, read.into, read.source)] = read
            self._waiting.popleft()
            moved = True
        if moved:
            return Work.MOVING
        return Work.WAITING if self._posted else Work.NONE

    def fail(self, why: ChannelError) -> None:
        """Fail all reads. Called on the poller's thread."""
        self._drop(why)

    def _end(self, read: _Read, nbytes: int) -> None:
        self._context.count_received(read.segment.kind, nbytes)
        self._loop.call_soon_threadsafe(_tell, [read], None)

    def _drop(self, why: ChannelError, dropped: "asyncio.Future[None] | None" = None) -> None:
        """Destroy the agent, then fail the reads that wait. Called on the poller's thread."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.agent.close()
        left = list(self._posted.values())
        self._posted.clear()
        self._loop.call_soon_threadsafe(self._dropped, left, why, dropped)

    def _dropped(
        self, left: list[_Read], why: ChannelError, dropped: "asyncio.Future[None] | None"
    ) -> None:
        self.closed = True
        _tell([*left, *self._waiting], why)
        self._waiting.clear()
        if dropped is not None and not dropped.done():
            dropped.set_result(None)


def _tell(reads: Sequence[_Read], error: ChannelError | None) -> None:
    """Resolve the futures of `reads`, except those whose waiter was cancelled."""
    for read in reads:
        if read.ended.done():
            continue
        if error is None:
            read.ended.set_result(None)
        else:
            read.ended.set_exception(error)
            read.ended.exception()  # whoever waited may have gone with an earlier one
