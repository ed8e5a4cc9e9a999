"""State over gRPC: raw bytes, to the data address of the worker that takes them."""

from grpc import aio

from baton.transfer.channels.base import Capabilities, Channel
from baton.transfer.channels.grpc.receiver import GrpcReceiver, StateChannelServicer
from baton.transfer.channels.grpc.sender import GrpcSender


class GrpcChannel(Channel):
    """Works between any two workers, so prefixes fall back to it."""

    name = "grpc"
    capabilities = Capabilities(push=True, through_host=True, fallback=True)

    def add_to(self, server: aio.Server) -> None:
        StateChannelServicer(self.context.tickets, self.context.count_received).add_to(server)

    async def open_receiver(self) -> GrpcReceiver:
        return GrpcReceiver(self.context.data_address)

    async def connect_sender(self, endpoint: bytes) -> GrpcSender:
        """Connect without waiting: where nobody listens, the first hand-off says so."""
        return GrpcSender(endpoint.decode(), self.context)
