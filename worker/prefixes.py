"""Both ends of moving prefixes between caches: every worker may have what another needs."""

from grpc import aio

from baton.proto import handoff_pb2_grpc
from baton.transfer.tickets import TicketTable
from baton.worker.context import WorkerContext
from baton.worker.prefix_fetcher import PrefixFetcher
from baton.worker.prefix_holder import PrefixHolder


class Prefixes:
    """The caller serves `StateChannel` over the same tickets."""

    def __init__(self, context: WorkerContext, tickets: TicketTable) -> None:
        self.fetcher = PrefixFetcher(context, tickets)
        self._holder = PrefixHolder(context)

    def add_to(self, server: aio.Server) -> None:
        handoff_pb2_grpc.add_PrefixesServicer_to_server(self._holder, server)

    async def close(self) -> None:
        await self.fetcher.close()
        await self._holder.close()
