"""A router's Registry, for workers to register with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from certificates import router as router_credentials
from grpc import aio
from worker.cluster import DEADLINE_S

from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc


class FakeRouter(worker_pb2_grpc.RegistryServicer):
    LEASE_MS = 500

    def __init__(
        self,
        refuse: common_pb2.Error | None = None,
        router_id: str = "r7",
        demand: worker_pb2.Demand | None = None,
    ) -> None:
        """demand: None for a router of a release that knows of none."""
        self.demand = demand
        self.refuse = refuse
        self.router_id = router_id
        self.keeps_details = False  # as one of a release that remembers no details
        self.says_its_name = False  # as one of a release that cannot be asked
        self.takes_back = True  # False: a router of a release that knows of no returns
        self.streams: list[list[worker_pb2.WorkerReport]] = []  # reports of each, oldest first
        self.ended = 0  # streams
        self._changed = asyncio.Event()

    async def Register(
        self, reports: AsyncIterator[worker_pb2.WorkerReport], context: aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.RegistryReply]:
        mine: list[worker_pb2.WorkerReport] = []
        self.streams.append(mine)
        context.add_done_callback(self._count_end)
        async for report in reports:
            mine.append(report)
            self._changed.set()
            if len(mine) == 1:
                yield worker_pb2.RegistryReply(
                    router_id=self.router_id,
                    lease_ms=self.LEASE_MS,
                    error=self.refuse,
                    demand=self.demand,
                    keeps_details=self.keeps_details,
                )
            elif self.demand is not None and report.HasField("share"):
                self.demand.share = report.share.number
                yield worker_pb2.RegistryReply(router_id=self.router_id, demand=self.demand)
            if self.takes_back and len(mine) > 1 and mine[-2].leaving and not report.leaving:
                yield worker_pb2.RegistryReply(router_id=self.router_id, returned=True)
            if report.leaving:
                yield worker_pb2.RegistryReply(router_id=self.router_id, leaving=True)

    async def Name(
        self, request: worker_pb2.NameRequest, context: aio.ServicerContext
    ) -> worker_pb2.RouterName:
        if not self.says_its_name:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in this release")
        return worker_pb2.RouterName(name=self.router_id.split("/")[0])

    def _count_end(self, _: object) -> None:
        self.ended += 1
        self._changed.set()

    async def until(self, ready: object) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not ready(self):  # type: ignore[operator]
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def serving(router: FakeRouter, port: int = 0) -> AsyncIterator[str]:
    """`router` answers at the address; afterwards nobody does."""
    server = aio.server(options=(("grpc.so_reuseport", 0),))
    worker_pb2_grpc.add_RegistryServicer_to_server(router, server)
    bound = server.add_secure_port(f"127.0.0.1:{port}", router_credentials().server())
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)
