"""State over gRPC: raw bytes, one call a hand-off, applied as it lands, one reply at the end.

The receiver's own thread copies each segment into its pools, so a ticket that is closed is closed:
nothing can write there any more, and its memory is free at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

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
from baton.transfer.segments import MESSAGE_BYTES, Kind, Segment
from baton.transfer.tickets import Claim, Received, TicketTable
from baton.transfer.tls import Tls

GRPC = "grpc"
SERVICE = "baton.v1.StateChannel"
METHOD = f"/{SERVICE}/Write"
T = TypeVar("T")

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

    segment_bytes = MESSAGE_BYTES

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
    """One call of `StateChannel/Write`."""

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
        self._deadline_s = deadline_s
        self._on_bytes = on_bytes
        self._opening: bytes | None = frames.encode_opening(claim)
        self._reply = asyncio.ensure_future(call.read())
        self._sending: asyncio.Future[None] | None = None  # the last message

    async def write(self, segment: Segment, holder: Holder) -> None:
        """The payload is copied into the message before the first await; the message goes out while
        the next one is made."""
        message = frames.encode_segment(segment, self._memory.read(segment, holder), self._verify)
        if self._opening is not None:
            opening, self._opening = self._opening, None
            await self._send(opening)
        await self._sent()
        self._sending = asyncio.ensure_future(self._send(message))
        self._sending.add_done_callback(_heard)
        self._on_bytes(segment.kind, len(message))
        await asyncio.sleep(0)  # it starts now, not after the next one is made

    async def flush(self) -> None:
        """Nothing: each message is a copy."""

    async def finish(self) -> Received:
        await self._sent()
        return await self._within_deadline(self._finish())

    def cancel(self) -> None:
        self._reply.cancel()
        self._call.cancel()

    async def drained(self) -> None:
        """Nothing: the receiver writes, and never into a closed ticket."""

    async def _sent(self) -> None:
        """The last message has gone. Raises what kept it from going."""
        if self._sending is not None:
            await self._sending
            self._sending = None

    async def _send(self, message: bytes) -> None:
        if self._reply.done():  # before the end there is nothing but a refusal to reply
            await self._within_deadline(self._read_reply())
        await self._within_deadline(self._call.write(message))

    async def _finish(self) -> Received:
        await self._call.done_writing()
        return await self._read_reply()

    async def _read_reply(self) -> Received:
        reply = await self._reply
        if not isinstance(reply, bytes):
            raise ChannelError(f"{self._address} ended the transfer without a reply")
        return frames.decode_reply(reply)

    async def _within_deadline(self, step: Awaitable[T]) -> T:
        """`step`'s result. Raises what the receiver refused with, or ChannelError; then the call
        is over."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await step
        except TimeoutError:
            self.cancel()
            raise ChannelError(
                f"{self._address} took no bytes for {self._deadline_s:g} s; check the network "
                "between the two workers"
            ) from None
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.cancel()
            why = error.details() if isinstance(error, aio.AioRpcError) else str(error)
            raise ChannelError(f"the connection to {self._address} broke: {why}") from error
        except TransferError:
            self.cancel()
            raise


def _heard(sending: "asyncio.Future[None]") -> None:
    """What went wrong is raised where the next message waits; after a cancel nobody waits."""
    if not sending.cancelled():
        sending.exception()
