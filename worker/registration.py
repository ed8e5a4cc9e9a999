"""One stream to one router's Registry, for as long as the worker lives."""

import asyncio
import logging

from grpc import aio

from baton.proto import common_pb2, worker_pb2_grpc
from baton.transfer.grpc_options import OPTIONS
from baton.worker.errors import WorkerError, error_of_call, make_error
from baton.worker.reporter import Reporter
from baton.worker.streams import first_of

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 2.0


class Registration:
    """Connects, reports, and connects again, for ever: a router may come back at any time."""

    def __init__(
        self, router: str, hello: common_pb2.Hello, reporter: Reporter, deadline_s: float
    ) -> None:
        """deadline_s: for the router to reply to the first report, and to take each later one."""
        self._router = router
        self._hello = hello
        self._reporter = reporter
        self._deadline_s = deadline_s
        self._backoff_s = FIRST_BACKOFF_S
        self.router_id: str | None = None  # of the router that has taken this worker on
        self._goodbye = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._attend()
            except WorkerError as lost:
                log.warning("registration with router %s: %s", self._router, lost)
            finally:
                self.router_id = None
                self._goodbye.set()  # nobody is left to hear it
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    async def heard_leaving(self) -> None:
        """Until the router has heard that this worker leaves; at once where it has none."""
        if self.router_id is not None:
            await self._goodbye.wait()

    async def _attend(self) -> None:
        """One connection, from the first report to the WorkerError that ends it."""
        self._goodbye.clear()
        async with aio.insecure_channel(self._router, options=OPTIONS) as channel:
            call = worker_pb2_grpc.RegistryStub(channel).Register()
            try:
                async with asyncio.timeout(self._deadline_s):
                    number = await self._greet(call)
                await first_of(self._listen(call), self._report(call, number))
            except aio.AioRpcError as failed:
                raise WorkerError(error_of_call(failed, self._router)) from failed
            except asyncio.InvalidStateError as failed:  # grpc.aio's word for a finished call
                raise self._lost("its stream is closed") from failed
            except TimeoutError as failed:
                raise self._lost(f"no answer within {self._deadline_s:g} s") from failed
            finally:
                call.cancel()

    async def _greet(self, call: aio.StreamStreamCall) -> int:
        """The first report, and the reply that takes the worker on; returns its number."""
        number, report = await self._reporter.next_report(0)
        report.hello.CopyFrom(self._hello)
        await call.write(report)
        await self._hear(call)
        log.info("registered", extra={"router": self._router, "router_id": self.router_id})
        self._backoff_s = FIRST_BACKOFF_S
        return number

    async def _report(self, call: aio.StreamStreamCall, number: int) -> None:
        while True:
            number, report = await self._reporter.next_report(number)
            async with asyncio.timeout(self._deadline_s):
                await call.write(report)

    async def _listen(self, call: aio.StreamStreamCall) -> None:
        while True:
            await self._hear(call)

    async def _hear(self, call: aio.StreamStreamCall) -> None:
        reply = await call.read()
        if reply is aio.EOF:
            raise self._lost("it ended the stream")
        if reply.HasField("error"):
            raise WorkerError(reply.error)
        self.router_id = reply.router_id
        if reply.leaving:
            self._goodbye.set()

    def _lost(self, why: str) -> WorkerError:
        message = f"router {self._router}: {why}"
        return WorkerError(make_error(common_pb2.UNAVAILABLE, self._router, message, True))
