"""One small hand-off by gRPC: a part of one message."""

import asyncio
from collections.abc import Callable, Sequence

from baton.core.state_ref import StateRef
from baton.transfer.channels import frames
from baton.transfer.channels.base import ChannelContext
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment, nbytes
from baton.transfer.tickets import Claim, Received


class WholeWriteOperation:
    """Notes what is written, and lets all of it leave as soon as the last byte is there."""

    def __init__(
        self,
        leave: Callable[["WholeWriteOperation"], None],
        claim: Claim,
        size: int,
        context: ChannelContext,
    ) -> None:
        """leave: has `parts` sent and calls `left`, then `replied`; or `failed`. size: the payload
        bytes of all segments."""
        self._leave = leave
        self._claim = claim
        self.nbytes = self._more = size
        self._context = context
        self._segments: list[Sequence[bytes | memoryview]] = []  # in parts, which alias the pool
        self._leaves = False
        loop = asyncio.get_running_loop()
        self._left: asyncio.Future[None] = loop.create_future()
        self._reply: asyncio.Future[bytes] = loop.create_future()

    async def write(self, segment: Segment, holder: StateRef) -> None:
        self._check()
        memory = self._context.memory
        payload = memory.read(segment, holder)
        checked = memory.checked(segment, holder, payload) if self._context.verify else None
        self._segments.append(frames.parts_of_segment(segment, payload, checked))
        size = nbytes(segment, memory.pages)
        self._context.count_sent(segment.kind, frames.HEADER_BYTES + size)
        self._more -= size
        if self._more <= 0:
            self._begin()

    async def flush(self) -> None:
        """Send what is there, which copies it: more may not follow."""
        self._check()
        self._begin()
        await asyncio.shield(self._left)

    async def finish(self) -> Received:
        self._check()
        self._begin()
        return frames.decode_reply(await asyncio.shield(self._reply))

    def cancel(self) -> None:
        if not self._left.done():
            self._left.cancel()
        if not self._reply.done():
            self._reply.cancel()
        elif not self._reply.cancelled():
            self._reply.exception()  # nobody will ask for it

    async def drained(self) -> None:
        """Do nothing: the receiver writes, and never under a closed ticket."""

    @property
    def cancelled(self) -> bool:
        return self._left.cancelled() or self._reply.cancelled()

    @property
    def parts(self) -> list[bytes | memoryview]:
        """Return all that was written, as it travels. It aliases the pool until `left`."""
        return frames.parts_of_whole(self._claim, self._segments)

    def left(self) -> None:
        """Note that the message is made."""
        self._segments.clear()
        if not self._left.done():
            self._left.set_result(None)

    def replied(self, reply: bytes) -> None:
        """Take the receiver's word."""
        if not self._reply.done():
            self._reply.set_result(reply)

    def failed(self, why: ChannelError) -> None:
        """Note that no reply comes."""
        self.left()
        if not self._reply.done():
            self._reply.set_exception(why)

    def _begin(self) -> None:
        if not self._leaves:
            self._leaves = True
            self._leave(self)

    def _check(self) -> None:
        if self.cancelled:
            raise ChannelError("the write was cancelled")
