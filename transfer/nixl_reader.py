"""Reads from one peer's pools by NIXL: what a prefix is fetched by.

A read changes nothing at the peer, and what it brings is of no use until the peer says that the
memory was still lent: a reader that was stopped harms nobody. Its own memory it may give away only
once its reads have ended, which `read` waits for however it ends.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from baton.transfer.channel import OnBytes
from baton.transfer.errors import ChannelError
from baton.transfer.nixl_plan import cut, wire_bytes
from baton.transfer.nixl_reach import Reach
from baton.transfer.poller import Poller, Work
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import Segment

READS = 4
"""In flight at once."""


@dataclass(frozen=True, eq=False)
class _Read:
    segment: Segment
    into: Holder
    source: Holder
    ended: "asyncio.Future[None]"


class NixlReader:
    """Posts on the poller's thread; all else happens on the loop's."""

    def __init__(
        self, reach: Reach, memory: EngineMemory, poller: Poller, lease_s: float, on_bytes: OnBytes
    ) -> None:
        """lease_s: the longest that a read may take."""
        self._reach: Reach | None = reach
        self._memory = memory
        self._poller = poller
        self._lease_s = lease_s
        self._on_bytes = on_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Read] = deque()
        self._posted: dict[int, _Read] = {}  # by the read's number; the poller's thread has it
        self.closed = False  # of no more use

    async def read(self, segments: Sequence[Segment], into: Holder, source: Holder) -> None:
        """All of it is in `into`, or nothing more will be. Raises ChannelError; the reader is
        closed then, and where the caller is cancelled."""
        if self.closed:
            raise ChannelError("the connection was closed")
        reads = [_Read(s, into, source, self._loop.create_future()) for s in segments]
        whole = False
        try:
            self._waiting.extend(reads)
            self._poller.wake(self)
            async with asyncio.timeout(self._lease_s):
                for read in reads:
                    await read.ended
            whole = True
        except TimeoutError:
            raise ChannelError(
                f"a read was not done within {self._lease_s:g} s; check UCX_TLS and the network "
                "between the two workers"
            ) from None
        finally:
            if not whole:
                await self.close()

    async def close(self) -> None:
        """Nothing is read any more when it returns."""
        self.closed = True
        dropped = self._loop.create_future()
        self._poller.call(lambda: self._drop(ChannelError("the connection was closed"), dropped))
        await dropped

    def poll(self) -> Work:
        """On the poller's thread."""
        if self._reach is None:
            return Work.NONE
        try:
            agent = self._reach.agent
            done = [number for number in self._posted if agent.done(number)]
            for number in done:
                self._end(self._posted.pop(number))
            moved = bool(done)
            while self._waiting and len(self._posted) < READS:
                self._post_next(self._reach)
                moved = True
        except ChannelError as error:
            self._drop(error)
            return Work.NONE
        if moved:
            return Work.MOVING
        return Work.WAITING if self._posted else Work.NONE

    def _post_next(self, reach: Reach) -> None:
        read = self._waiting.popleft()
        part = cut(read.segment, self._memory)
        try:
            self._posted[reach.fetch(part, read.into, read.source)] = read
        except ChannelError:
            self._waiting.appendleft(read)  # it ends with the others
            raise

    def _end(self, read: _Read) -> None:
        self._on_bytes(read.segment.kind, wire_bytes(read.segment, self._memory))
        self._loop.call_soon_threadsafe(_tell, [read], None)

    def _drop(self, why: ChannelError, dropped: "asyncio.Future[None] | None" = None) -> None:
        """On the poller's thread: the agent goes first, then those who wait are told."""
        reach, self._reach = self._reach, None
        if reach is not None:
            reach.agent.close()
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
    """Who waits for them. A cancelled one is not there any more."""
    for read in reads:
        if read.ended.done():
            continue
        if error is None:
            read.ended.set_result(None)
        else:
            read.ended.set_exception(error)
            read.ended.exception()  # whoever waited may have gone with an earlier one
