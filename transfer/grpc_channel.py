"""State over gRPC: raw bytes, one call a hand-off, applied as it lands, one reply at the end.

The receiver's own thread copies each segment into its pools, so a ticket that is closed is closed:
nothing can write there any more, and its memory is free at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import grpc
from grpc import aio

from baton.transfer import frames
from baton.transfer.channel import OnBytes, OnMoving
from baton.transfer.errors import (
    ChannelError,
    ChecksumError,
    FrameError,
    TicketError,
    TransferError,
)
from baton.transfer.grpc_options import DATA_OPTIONS
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received, TicketTable
from baton.transfer.tls import Tls
from baton.transfer.watchdog import Watchdog

GRPC = "grpc"
SERVICE = "baton.v1.StateChannel"
METHOD = f"/{SERVICE}/Write"
SEGMENT_BYTES = 2 << 20
"""Of one message: what each costs in Python and in thread switches counts half of what it does at
1 MiB; past 2 MiB the copies of a message leave the core's own cache, and cost more than that."""

_CODES: tuple[tuple[type[TransferError], grpc.StatusCode], ...] = (
    (ChecksumError, grpc.StatusCode.DATA_LOSS),
    (TicketError, grpc.StatusCode.FAILED_PRECONDITION),
    (FrameError, grpc.StatusCode.INVALID_ARGUMENT),
)


class GrpcReceiver:
    """Serves `baton.v1.StateChannel/Write`: puts what arrives where its ticket says."""

    def __init__(self, tickets: TicketTable, on_bytes: OnBytes) -> None:
        """on_bytes: told of every segment, headers included."""
        self._tickets = tickets
        self._on_bytes = on_bytes

    def add_to(self, server: aio.Server) -> None:
        # No serialisers: requests and replies stay the bytes that they are.
        handler = grpc.stream_stream_rpc_method_handler(self._write)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Write": handler}),)
        )

    async def _write(
        self, messages: AsyncIterator[bytes], context: aio.ServicerContext[bytes, bytes]
    ) -> None:
        claim: Claim | None = None
        applied = Received(0, 0, 0)
        try:
            async for message in messages:
                if claim is None:
                    opening = frames.decode_opening(message)
                    self._tickets.admit(opening)
                    claim = opening
                else:
                    applied = applied.plus(*self._apply(claim, message))
            if claim is None:
                raise FrameError("a Write stream ended before it opened a ticket")
            # Not asked of the ticket: it may have been activated, and closed, with the last byte.
            await context.write(frames.encode_reply(applied))
        except TransferError as error:
            if claim is not None:
                self._tickets.broken(claim, error)
            # The reply goes first, and the call ends only when the writer has stopped: a call that
            # ends in the middle of a write loses its status (grpc.aio puts its own in its place).
            await context.write(frames.encode_refusal(error))
            async for _ in messages:
                pass
            code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
            await context.abort(code or grpc.StatusCode.INTERNAL, frames.describe(error))

    def _apply(self, claim: Claim, message: bytes) -> tuple[Kind, int]:
        segment, payload = frames.decode_segment(message)
        self._tickets.apply(claim, segment, payload)
        self._on_bytes(segment.kind, len(message))
        return segment.kind, len(payload)


class GrpcIntake:
    """One peer's view of the receiver. Bytes are applied here, so a closed ticket is closed."""

    one_sided = False

    def __init__(self, address: str) -> None:
        self.endpoint = address.encode()

    def chosen(self) -> None:
        """Nothing: the receiver serves whoever has a ticket."""

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None:
        """Nothing: gRPC makes progress by itself."""

    async def close(self) -> None:
        """Nothing: see `chosen`."""


class GrpcSource:
    """Offers the receiver that listens at `address`, host:port."""

    name = GRPC

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self) -> GrpcIntake:
        return GrpcIntake(self._address)


class GrpcOutlet:
    """The writer's end."""

    name = GRPC

    def __init__(
        self,
        memory: EngineMemory,
        *,
        verify: bool,
        deadline_s: float,
        on_bytes: OnBytes,
        tls: Tls | None = None,
    ) -> None:
        """deadline_s: how long one message may wait for the peer to take it."""
        self._tls = tls
        self._memory = memory
        self._verify = verify
        self._deadline_s = deadline_s
        self._on_bytes = on_bytes

    async def connect(self, endpoint: bytes) -> "GrpcConnection":
        """Does not wait: where nobody listens, the first hand-off says so."""
        return GrpcConnection(
            endpoint.decode(),
            self._memory,
            self._verify,
            self._deadline_s,
            self._on_bytes,
            self._tls,
        )


class GrpcConnection:
    """One connection, shared by all hand-offs to one peer."""

    segment_bytes = SEGMENT_BYTES

    def __init__(
        self,
        address: str,
        memory: EngineMemory,
        verify: bool,
        deadline_s: float,
        on_bytes: OnBytes,
        tls: Tls | None,
    ) -> None:
        self._address = address
        self._memory = memory
        self._verify = verify
        self._deadline_s = deadline_s
        self._on_bytes = on_bytes
        if tls is None:
            self._channel = aio.insecure_channel(address, options=DATA_OPTIONS)
        else:
            self._channel = aio.secure_channel(address, tls.client(), options=DATA_OPTIONS)

    def open(self, claim: Claim, target: Holder, on_moving: OnMoving) -> "GrpcWriting":
        """target: the receiver knows it by the ticket."""
        return GrpcWriting(
            self._channel.stream_stream(METHOD)(),
            self._address,
            claim,
            self._memory,
            self._verify,
            self._deadline_s,
            self._on_bytes,
        )

    def heard(self) -> None:
        """Nothing: the receiver fences."""

    async def lost(self) -> None:
        """Never: gRPC connects again, and a hand-off that could not says so itself."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self._channel.close()


class GrpcWriting:
    """One call of `StateChannel/Write`: a task of its own sends, so that a message goes out the
    moment that the one before it has gone, while the next one is made."""

    def __init__(
        self,
        call: aio.StreamStreamCall[bytes, bytes],
        address: str,
        claim: Claim,
        memory: EngineMemory,
        verify: bool,
        deadline_s: float,
        on_bytes: OnBytes,
    ) -> None:
        self._call = call
        self._address = address
        self._memory = memory
        self._verify = verify
        self._on_bytes = on_bytes
        self._waiting = deque([frames.encode_opening(claim)])
        self._more = asyncio.Event()  # a message waits, or none will follow
        self._taken = asyncio.Event()  # a message has left `_waiting`, or none will any more
        self._last = False  # none will follow
        self._late = False
        self._reply = asyncio.ensure_future(call.read())
        self._sending = asyncio.ensure_future(self._send_all())
        self._sending.add_done_callback(self._over)
        self._watchdog = Watchdog(deadline_s, self._give_up)

    async def write(self, segment: Segment, holder: Holder) -> None:
        """The payload is copied into the message before the first await."""
        message = frames.encode_segment(segment, self._memory.read(segment, holder), self._verify)
        self._waiting.append(message)
        self._more.set()
        self._on_bytes(segment.kind, len(message))
        while self._waiting and not self._sending.done():
            self._taken.clear()
            await self._taken.wait()
        if self._sending.done():
            await self._result()

    async def flush(self) -> None:
        """Nothing: each message is a copy."""

    async def finish(self) -> Received:
        self._last = True
        self._more.set()
        return await self._result()

    def cancel(self) -> None:
        self._sending.cancel()
        self._reply.cancel()
        self._call.cancel()

    async def drained(self) -> None:
        """Nothing: the receiver writes, and never into a closed ticket."""

    async def _result(self) -> Received:
        """Once all has gone. Raises what kept it from going."""
        await asyncio.wait([self._sending])
        if self._sending.cancelled():
            raise ChannelError("the write was cancelled")
        return self._sending.result()

    def _give_up(self) -> None:
        self._late = True
        self._sending.cancel()

    def _over(self, sending: "asyncio.Future[Received]") -> None:
        """What went wrong is raised where the next message waits; after a cancel nobody waits."""
        self._watchdog.stop()
        self._taken.set()
        if sending.cancelled() or sending.exception() is not None:
            self._reply.cancel()
            self._call.cancel()

    async def _send_all(self) -> Received:
        """Every message, and then the reply. Raises what the receiver refused with, or
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
                self._more.clear()
                await self._more.wait()
                continue
            self._watchdog.begin()
            if self._reply.done():  # before the end there is nothing but a refusal to reply
                return await self._read_reply()
            message = self._waiting.popleft()
            self._taken.set()
            await self._call.write(message)
        self._watchdog.begin()
        await self._call.done_writing()
        return await self._read_reply()

    async def _read_reply(self) -> Received:
        reply = await self._reply
        if not isinstance(reply, bytes):
            raise ChannelError(f"{self._address} ended the transfer without a reply")
        return frames.decode_reply(reply)
