"""One hand-off by gRPC: one call of `StateChannel/Write`."""

import asyncio
from collections import deque

from grpc import aio

from baton.core.state_ref import StateRef
from baton.core.supervised import child
from baton.transfer.channels import frames
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.channels.watchdog import Watchdog
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment
from baton.transfer.tickets import Claim, Received


class GrpcWriteOperation:
    """One call of `StateChannel/Write`. A task of its own sends, so that a message leaves as soon
    as the one before it has gone, while the next one is made."""

    def __init__(
        self,
        call: aio.StreamStreamCall[bytes, bytes],
        address: str,
        claim: Claim,
        context: ChannelContext,
        link: LinkRate,
    ) -> None:
        self._call = call
        self._address = address
        self._context = context
        self._link = link
        self._under_way: int | None = None  # bytes sent since the last rest; None: it rests
        self._waiting = deque([frames.encode_opening(claim)])
        self._more = asyncio.Event()  # a message waits, or none will follow
        self._taken = asyncio.Event()  # a message has left `_waiting`, or none will any more
        self._last = False  # none will follow
        self._late = False
        self._reply = child(call.read())
        self._sending = child(self._send_all())
        self._sending.add_done_callback(self._over)
        self._watchdog = Watchdog(context.lease_s, self._give_up)

    async def write(self, segment: Segment, holder: StateRef) -> None:
        """Copy the payload into a message, before the first await, and wait until it may leave."""
        memory = self._context.memory
        payload = memory.read(segment, holder)
        checked = memory.checked(segment, holder, payload) if self._context.verify else None
        message = frames.encode_segment(segment, payload, checked)
        self._waiting.append(message)
        self._more.set()
        self._context.count_sent(segment.kind, len(message))
        while self._waiting and not self._sending.done():
            self._taken.clear()
            await self._taken.wait()
        if self._sending.done():
            await self._result()

    async def flush(self) -> None:
        """Do nothing: each message is a copy."""

    async def finish(self) -> Received:
        self._last = True
        self._more.set()
        return await self._result()

    def cancel(self) -> None:
        self._sending.cancel()
        self._reply.cancel()
        self._call.cancel()

    async def drained(self) -> None:
        """Do nothing: the receiver writes, and never under a closed ticket."""

    async def _result(self) -> Received:
        """Wait until all has gone; return the receiver's count. Raises what kept it from going."""
        await asyncio.wait([self._sending])
        if self._sending.cancelled():
            raise ChannelError("the write was cancelled")
        return self._sending.result()

    def _give_up(self) -> None:
        self._late = True
        self._sending.cancel()

    def _over(self, sending: "asyncio.Future[Received]") -> None:
        """Wake the writer, which raises what went wrong. After a cancel nobody waits."""
        self._watchdog.stop()
        self._taken.set()
        failed = sending.cancelled() or sending.exception() is not None
        if failed:
            self._reply.cancel()
            self._call.cancel()
        self._measured(arrived=not failed)

    async def _send_all(self) -> Received:
        """Send every message, then read the reply. Raises what the receiver refused with, or
        ChannelError."""
        try:
            return await self._send_each()
        except asyncio.CancelledError:
            if not self._late:
                raise
            raise ChannelError(
                f"{self._address} took no bytes for {self._watchdog.deadline_s:g} s; check the "
                "network between the two workers"
            ) from None
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            why = error.details() if isinstance(error, aio.AioRpcError) else str(error)
            raise ChannelError(f"the connection to {self._address} broke: {why}") from error

    async def _send_each(self) -> Received:
        while self._waiting or not self._last:
            if not self._waiting:
                self._watchdog.rest()
                self._measured(arrived=True)
                self._more.clear()
                await self._more.wait()
                continue
            self._watchdog.begin()
            if self._reply.done():  # a reply before the end can only be a refusal
                return await self._read_reply()
            message = self._waiting.popleft()
            self._taken.set()
            if self._under_way is None:
                self._under_way = 0
                self._link.begin()
            await self._call.write(message)
            self._under_way += len(message)
        self._watchdog.begin()
        await self._call.done_writing()
        return await self._read_reply()

    def _measured(self, arrived: bool) -> None:
        """End the measurement that is under way, if one is. arrived: what was sent has."""
        if self._under_way is not None:
            self._link.end(self._under_way if arrived else 0)
            self._under_way = None

    async def _read_reply(self) -> Received:
        reply = await self._reply
        if not isinstance(reply, bytes):
            raise ChannelError(f"{self._address} ended the transfer without a reply")
        return frames.decode_reply(reply)
