"""The stream to one router's Registry, kept for as long as the worker lives."""

import asyncio
import logging

import grpc
from grpc import aio

from baton.core.errors import BatonError, PeerLostError
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.errors import error_from_proto, error_of_call
from baton.rpc.streams import check_cancelled, first_of
from baton.worker.reporter import Reporter
from baton.worker.router_shares import RouterDemand, RouterShare, RouterShares

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 2.0


class Registration:
    """A client that connects, reports and reconnects: a router may come back at any time."""

    def __init__(
        self,
        router: str,
        hello: common_pb2.Hello,
        credentials: Credentials,
        reporter: Reporter,
        lease_ms: int,
        shares: RouterShares,
        name: str | None = None,
    ) -> None:
        """router: its address. lease_ms: for the router to reply to the first report, and to read
        each later one. The router should have the same lease. shares: of all routers of this
        worker. name: the router's, which it has to prove; None: any router's.
        """
        self._router = router
        self._hello = hello
        self._credentials = credentials
        self._reporter = reporter
        self._lease_ms = lease_ms
        self._deadline_s = lease_ms / 1000
        self._shares = shares
        self._share: RouterShare | None = None  # this router's; None: it says nothing of demand
        self._divided = asyncio.Event()
        self._writing = asyncio.Lock()
        self._backoff_s = FIRST_BACKOFF_S
        self._name = name
        self._named = name  # the router that the next connection is for; None: any
        self.router_id: str | None = None  # of the router that has taken this worker on
        self._goodbye = asyncio.Event()
        self._returned = asyncio.Event()
        self._renewal = asyncio.Event()
        self._closing = False  # for good
        self._told: int | None = None  # of the cache, to this connection; None: nothing
        self._keeps_details = False  # the router remembers what does not change

    async def run(self) -> None:
        """Stay registered until cancelled or closed."""
        while not self._closing:
            try:
                await self._attend()
            except BatonError as lost:
                log.warning("registration with router %s: %s", self._router, lost)
            finally:
                self.router_id = None
                self._goodbye.set()  # nobody is left to hear it
                self._returned.set()
            check_cancelled()
            if self._closing:
                break
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    async def heard_leaving(self) -> None:
        """Wait until the router has read that this worker leaves. Return at once if it is not
        registered.
        """
        if self.router_id is not None:
            await self._goodbye.wait()

    async def heard_return(self) -> None:
        """Wait until the router has read that this worker, which was leaving, takes requests again.
        Return at once if it is not registered: its next first report says so.
        """
        self._goodbye.clear()
        if self.router_id is not None:
            self._returned.clear()
            await self._returned.wait()

    async def close(self) -> None:
        """End the registration for good, and wait until the router has dropped this worker, which
        it then takes for lost: it is started again."""
        self._closing = True
        self._renewal.set()
        self._goodbye.clear()
        if self.router_id is not None:
            await self._goodbye.wait()

    def divided(self) -> None:
        """Tell the router of its share soon: it may have changed."""
        self._divided.set()

    def move(self, router: str) -> None:
        """Register at another address, where the router is from now on."""
        if router != self._router:
            log.info("router %s is at %s now", self._name, router)
            self._router = router
            self._backoff_s = FIRST_BACKOFF_S
            self.renew()

    def renew(self) -> None:
        """End the registration and make a new one."""
        self._renewal.set()

    async def _attend(self) -> None:
        """Hold one connection. Always raises the BatonError that ends it."""
        self._goodbye.clear()
        self._renewal.clear()
        named, self._named = self._named, self._name
        if named is None:
            named = await self._ask_name()
        async with self._credentials.dial_router(self._router, OPTIONS, named) as channel:
            call = worker_pb2_grpc.RegistryStub(channel).Register()
            try:
                async with asyncio.timeout(self._deadline_s):
                    number, details = await self._greet(call)
                self._check_name(named)
                await first_of(
                    self._listen(call),
                    self._report(call, number, details),
                    self._tell_shares(call),
                    self._renewed(call),
                )
            except aio.AioRpcError as failed:
                raise error_from_proto(error_of_call(failed, self._router)) from failed
            except asyncio.InvalidStateError as failed:  # grpc.aio's word for a finished call
                raise self._lost("its stream is closed") from failed
            except TimeoutError as failed:
                raise self._lost(f"no answer within {self._deadline_s:g} s") from failed
            finally:
                self._leave_shares()
                call.cancel()

    async def _ask_name(self) -> str | None:
        """Return the name of the router at this address; None from one of an older release.

        Connections to a router by its own name stand when another router is revoked.
        """
        async with self._credentials.dial_router(self._router, OPTIONS) as channel:
            stub = worker_pb2_grpc.RegistryStub(channel)
            try:
                reply: worker_pb2.RouterName = await stub.Name(
                    worker_pb2.NameRequest(), timeout=self._deadline_s
                )
            except aio.AioRpcError as failed:
                if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return None
                raise error_from_proto(error_of_call(failed, self._router)) from failed
            return reply.name or None

    async def _greet(self, call: aio.StreamStreamCall) -> tuple[int, int]:
        """Send the first report and read the reply. Return the numbers of the report and of its
        details."""
        number, details, report = await self._reporter.next_report(0)
        report.hello.CopyFrom(self._hello)
        self._told = None
        await self._write(call, report)
        reply = await self._hear(call)
        self._keeps_details = reply.keeps_details
        self._compare_lease(reply.lease_ms)
        if reply.HasField("demand"):
            name = reply.router_id.split("/")[0]
            self._share = self._shares.join(name, _demand(reply.demand))
        log.info("registered", extra={"router": self._router, "router_id": self.router_id})
        self._backoff_s = FIRST_BACKOFF_S
        return number, details

    async def _report(self, call: aio.StreamStreamCall, number: int, details: int) -> None:
        while True:
            known = details if self._keeps_details else 0
            number, details, report = await self._reporter.next_report(number, known)
            await self._write(call, report)

    async def _tell_shares(self, call: aio.StreamStreamCall) -> None:
        """Report this router's share as often as it changes."""
        while True:
            await self._divided.wait()
            self._divided.clear()
            if self._share is not None:
                await self._write(call, worker_pb2.WorkerReport(leaving=self._reporter.leaving))

    async def _write(self, call: aio.StreamStreamCall, report: worker_pb2.WorkerReport) -> None:
        """Send a report, with this router's share and what is new in the cache by then."""
        async with asyncio.timeout(self._deadline_s), self._writing:
            snapshots = self._reporter.snapshots
            cache = snapshots.whole() if self._told is None else snapshots.since(self._told)
            if cache is not None:
                report.cache.CopyFrom(cache)
                self._told = cache.sequence
            share = self._share
            if share is not None:
                report.routers.extend(self._shares.names)
                if self._shares.divided:
                    report.share.number, report.share.units = share.number, share.units
            await call.write(report)

    def _leave_shares(self) -> None:
        share, self._share = self._share, None
        if share is not None:
            self._shares.leave(share)

    async def _listen(self, call: aio.StreamStreamCall) -> None:
        while True:
            await self._hear(call)

    async def _renewed(self, call: aio.StreamStreamCall) -> None:
        await self._renewal.wait()
        if self._closing:  # the router ends its side when it has read this end
            async with self._writing:
                await call.done_writing()
            await call.code()
        raise self._lost("this worker registers again")

    async def _hear(self, call: aio.StreamStreamCall) -> worker_pb2.RegistryReply:
        read = await call.read()
        if read is aio.EOF:
            raise self._lost("it ended the stream")
        reply: worker_pb2.RegistryReply = read
        if reply.HasField("error"):
            raise error_from_proto(reply.error)
        self.router_id = reply.router_id
        if reply.leaving:
            self._goodbye.set()
        if reply.returned:
            self._returned.set()
        if reply.HasField("demand") and self._share is not None:
            self._shares.heard(self._share, _demand(reply.demand))
        if reply.cache_wanted:
            self._told = None
        return reply

    def _check_name(self, named: str | None) -> None:
        """Raise PeerLostError if the router may be a revoked one: the name of any router, which
        all have in their certificates, does not tell. The next connection asks for its own.
        """
        if named is None and self._credentials.doubts_routers:
            self._named = (self.router_id or "").split("/")[0]
            raise self._lost(f"it has to prove that it is {self._named}; some router was revoked")

    def _compare_lease(self, routers_ms: int) -> None:
        """Warn of a router with another lease: each side would judge the other by its own."""
        if routers_ms != self._lease_ms:
            log.warning(
                "router %s has a lease of %g s, this worker one of %g s; start both with the "
                "same --lease",
                self._router,
                routers_ms / 1000,
                self._lease_ms / 1000,
            )

    def _lost(self, why: str) -> PeerLostError:
        return PeerLostError(f"router {self._router}: {why}")


def _demand(said: worker_pb2.Demand) -> RouterDemand:
    return RouterDemand(said.wanted, said.held, said.most, said.share)
