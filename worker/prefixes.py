"""Both ends of moving prefixes between the caches of workers."""

from grpc import aio

from baton.proto import handoff_pb2_grpc
from baton.transfer.tickets import TicketTable
from baton.worker.channels import WorkerChannels
from baton.worker.context import WorkerContext
from baton.worker.prefix_fetcher import PrefixFetcher
from baton.worker.prefix_holder import PrefixHolder


class Prefixes:
    """The prefix service and the prefix client of a worker. The caller serves `StateChannel`."""

    def __init__(
        self, context: WorkerContext, tickets: TicketTable, channels: WorkerChannels
    ) -> None:
        """channels: made over the same `tickets`."""
        self.fetcher = PrefixFetcher(context, tickets, channels)
        self._holder = PrefixHolder(context, channels)

    def add_to(self, server: aio.Server) -> None:
        handoff_pb2_grpc.add_PrefixesServicer_to_server(self._holder, server)

    async def close(self) -> None:
        """End everything that is under way."""
        await self.fetcher.close()
        await self._holder.close()
