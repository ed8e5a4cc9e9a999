"""The sending end of the gRPC channel: one connection to each peer."""

import asyncio

from baton.core.state_ref import StateRef
from baton.proto.common_pb2 import WorkerIdentity
from baton.rpc.channel_options import DATA_OPTIONS
from baton.rpc.credentials import Credentials
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.ends import OnMoving
from baton.transfer.channels.grpc.receiver import METHOD, WHOLE_METHOD
from baton.transfer.channels.grpc.whole_write import WholeWriteOperation
from baton.transfer.channels.grpc.whole_writes import WholeWrites
from baton.transfer.channels.grpc.write_operation import GrpcWriteOperation
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.tickets import Claim

SEGMENT_BYTES = 2 << 20
"""Payload bytes of one message. A message's fixed cost, in Python and in thread switches, counts
half of what it does at 1 MiB; past 2 MiB the copies of a message leave the core's own cache and
cost more than that."""
WHOLE_BYTES = SEGMENT_BYTES
"""Payload bytes of a hand-off that leaves with others in one message, where all of it is there when
it begins."""


class GrpcSender:
    """One connection, shared by all hand-offs to one peer."""

    segment_bytes = SEGMENT_BYTES

    def __init__(
        self,
        peer: WorkerIdentity,
        context: ChannelContext,
        credentials: Credentials,
        takes_whole: bool,
    ) -> None:
        """takes_whole: the peer takes small hand-offs in one message."""
        self._address = peer.address
        self._context = context
        self.link = LinkRate()
        self._channel = credentials.dial_worker(peer, DATA_OPTIONS)
        rpc = self._channel.unary_unary(WHOLE_METHOD)
        self._whole = WholeWrites(rpc, self._address, context.lease_s, self.link)
        self._most_whole = WHOLE_BYTES if takes_whole else -1

    def open(
        self, claim: Claim, target: StateRef, on_moving: OnMoving, size: int | None = None
    ) -> GrpcWriteOperation | WholeWriteOperation:
        """Begin a hand-off. `target` is not used: the receiver finds it by the ticket."""
        if size is not None and size <= self._most_whole:
            return WholeWriteOperation(self._whole.put, claim, size, self._context)
        call = self._channel.stream_stream(METHOD)()
        return GrpcWriteOperation(call, self._address, claim, self._context, self.link)

    def heard(self) -> None:
        """Do nothing: the receiver fences every write."""

    async def lost(self) -> None:
        """Wait for ever: gRPC connects again, and a hand-off that fails says so itself."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self._channel.close()
