"""State over gRPC: raw bytes, to the gRPC server of the worker that takes them."""

from grpc import aio

from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels.base import Capabilities, Channel
from baton.transfer.channels.grpc.receiver import (
    GrpcReceiver,
    StateChannelServicer,
    takes_whole,
)
from baton.transfer.channels.grpc.sender import GrpcSender
from baton.transfer.errors import ChannelError


class GrpcChannel(Channel):
    """Works between any two workers, so prefixes fall back to it."""

    name = "grpc"
    capabilities = Capabilities(push=True, through_host=True, fallback=True)

    def add_to(self, server: aio.Server) -> None:
        StateChannelServicer(self.context.tickets, self.context.count_received).add_to(server)

    async def open_receiver(self) -> GrpcReceiver:
        return GrpcReceiver()

    async def connect_sender(self, endpoint: bytes, peer: WorkerIdentity) -> GrpcSender:
        """Connect without waiting: where nobody listens, the first hand-off says so.

        endpoint: what the peer understands. It takes state where it takes everything else.
        """
        if self.context.credentials is None:
            raise ChannelError("this worker has no certificate to show to others")
        return GrpcSender(peer, self.context, self.context.credentials, takes_whole(endpoint))
