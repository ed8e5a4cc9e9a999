"""The receiving end of the gRPC channel: one call a hand-off, one reply at its end.

`Write` takes a stream of messages, `WriteWhole` several small hand-offs in one.

The receiver's own thread copies each segment into its pools. Nothing can therefore write under a
closed ticket, and its memory is free at once.
"""

from collections.abc import AsyncIterator

import grpc
from grpc import aio

from baton.core.handoff_ids import TicketId
from baton.proto.version import PROTOCOL_MINOR
from baton.transfer.channels import frames
from baton.transfer.channels.ends import OnBytes
from baton.transfer.errors import FrameError, TransferError
from baton.transfer.memory.segments import Kind
from baton.transfer.tickets import Claim, Received, TicketTable

SERVICE = "baton.v1.StateChannel"
METHOD = f"/{SERVICE}/Write"
WHOLE_METHOD = f"/{SERVICE}/WriteWhole"
_WHOLE_MINOR = 2  # the first minor version of the protocol that has it


def endpoint() -> bytes:
    """Return what a receiver tells senders: its minor version, which those before 2 did not."""
    return bytes([PROTOCOL_MINOR]) if PROTOCOL_MINOR >= _WHOLE_MINOR else b""


def takes_whole(theirs: bytes) -> bool:
    """Return True if this process and the receiver with the endpoint `theirs` know WriteWhole."""
    return min(PROTOCOL_MINOR, *theirs[:1] or (0,)) >= _WHOLE_MINOR


class StateChannelServicer:
    """The service `baton.v1.StateChannel`: puts what arrives where its ticket says."""

    def __init__(self, tickets: TicketTable, on_bytes: OnBytes) -> None:
        """on_bytes: counts every segment, headers included."""
        self._tickets = tickets
        self._on_bytes = on_bytes

    def add_to(self, server: aio.Server) -> None:
        # No serialisers: requests and replies stay the bytes that they are.
        handlers = {
            "Write": grpc.stream_stream_rpc_method_handler(self._write),
            "WriteWhole": grpc.unary_unary_rpc_method_handler(self._write_whole),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def _write_whole(
        self, message: bytes, context: aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        try:
            writes = frames.decode_several(message)
        except FrameError as error:
            await context.abort(grpc.StatusCode[error.status.grpc], frames.describe(error))
        return frames.encode_several([self._take(write)] for write in writes)

    def _take(self, write: memoryview) -> bytes:
        """Put one write where its ticket says. Return the reply."""
        claim: Claim | None = None
        applied = Received(0, 0, 0)
        try:
            opening, segments = frames.decode_whole(write)
            self._tickets.admit(opening)
            claim = opening
            for segment in segments:
                applied = applied.plus(*self._apply(claim, segment))
        except TransferError as error:
            if claim is not None:
                self._tickets.broken(claim, error)
            return frames.encode_refusal(error)
        return frames.encode_reply(applied)

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
            # The count is this call's own: the ticket may have been activated and closed with the
            # last byte.
            await context.write(frames.encode_reply(applied))
        except TransferError as error:
            if claim is not None:
                self._tickets.broken(claim, error)
            # The reply goes first, and the call ends only when the writer has stopped: a call that
            # ends in the middle of a write loses its status (grpc.aio puts its own in its place).
            await context.write(frames.encode_refusal(error))
            async for _ in messages:
                pass
            await context.abort(grpc.StatusCode[error.status.grpc], frames.describe(error))

    def _apply(self, claim: Claim, message: bytes | memoryview) -> tuple[Kind, int]:
        segment, payload = frames.decode_segment(message)
        self._tickets.apply(claim, segment, payload)
        self._on_bytes(segment.kind, len(message))
        return segment.kind, len(payload)


class GrpcReceiver:
    """The servicer, as one peer sees it."""

    def __init__(self) -> None:
        self.endpoint = endpoint()  # the peer knows this worker's address

    def chosen(self) -> None:
        """Do nothing: the servicer serves whoever has a ticket."""

    def moving(self, ticket: TicketId, under_way: bool, segments: int) -> None:
        """Do nothing: gRPC makes progress by itself."""

    async def close(self) -> None:
        """Do nothing: the servicer serves all peers, and a closed ticket is closed for each."""
