"""Small real gRPC servers that play workers in tests of a router."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeVar

import grpc
from certificates import credentials_of

from baton.core.role import Role
from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import (
    CONFLICT,
    DECODE,
    LENGTH,
    PREFILL,
    Error,
    Finished,
    Hello,
    Timings,
    Usage,
    WorkerIdentity,
)
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import (
    CacheReport,
    CancelRequest,
    EngineTotals,
    FlushCacheReply,
    FlushCacheRequest,
    MetricsReply,
    MetricsRequest,
    OwnerCount,
    RankMessage,
    Recall,
    RegistryReply,
    RequestTokens,
    RouterMessage,
    Share,
    StartProfileReply,
    StartProfileRequest,
    StartRequest,
    StopProfileReply,
    StopProfileRequest,
    WorkerReport,
    WorkerStatus,
)
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials

DEADLINE_S = 60.0
"""The deadline of every wait in a test; only a broken router reaches it."""
VOCAB = 300
T = TypeVar("T")
Answer = Callable[[StartRequest], Iterable[RequestTokens]]


class FakeWorker(worker_pb2_grpc.WorkerServicer, AbstractAsyncContextManager["FakeWorker"]):
    """Serves `baton.v1.Worker` and registers when told; a prefill worker does no more than that."""

    role = PREFILL

    def __init__(self, worker_id: str, incarnation: int = 1, **fingerprint: str) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.number = int(worker_id[1:]) if worker_id[1:].isdigit() else 0
        self.fingerprint = {"model": "toy", **fingerprint}
        self.protocol_minor = PROTOCOL_MINOR
        self.flushes: list[int] = []
        self.flushed_salts: list[bytes] = []
        self.flush_takes_s = 0.0
        """The timeouts it was given, ms."""
        self.flush_error: Error | None = None
        self.profiling: StartProfileRequest | None = None
        """The profile that runs."""
        self.profile_error: Error | None = None
        self.settings: dict[str, str] = {}
        self.totals: EngineTotals | None = None
        self.page = f'of{{worker="{worker_id}"}} 1.0\n'.encode()
        """Its metrics; nothing parses them."""
        self.page_given = asyncio.Event()
        self.page_given.set()
        self.replies: asyncio.Queue[RegistryReply | None] = asyncio.Queue()
        self.running = 0
        self.leaving = False
        self.share: Share | None = None
        """The part of it that the router may have."""
        self.routers: list[str] = []
        self.max_running = 4
        self.max_model_len = 0
        self._reports: asyncio.Queue[WorkerReport | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._server = grpc.aio.server()

    async def __aenter__(self) -> "FakeWorker":
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self._add_services(self._server)
        port = self._server.add_secure_port("127.0.0.1:0", self._credentials().server())
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(0)

    def _credentials(self) -> Credentials:
        role = Role.PREFILL if self.role == PREFILL else Role.DECODE
        return credentials_of(role.value, self.worker_id)

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            address=self.address,
            role=self.role,
            group=self.number // 2,
            rank=self.number,
        )

    @property
    def hello(self) -> Hello:
        return Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=self.protocol_minor,
            worker=self.identity,
            fingerprint=self.fingerprint,
        )

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus(
            worker=self.identity,
            running=self.running,
            max_running=self.max_running,
            max_model_len=self.max_model_len,
            pages=[OwnerCount(owner="free", count=7), OwnerCount(owner="live", count=2)],
            settings=self.settings,
            totals=self.totals,
        )

    async def register(self, router: str, beat_s: float = 0.05) -> RegistryReply:
        """Join and report every `beat_s`; the router's first reply."""
        self._tasks.append(asyncio.create_task(self._hold_registration(router, beat_s)))
        reply = await within(self.replies.get())
        assert reply is not None
        return reply

    def report(self, leaving: bool = False, cache: CacheReport | None = None) -> None:
        """Report now, and that the worker leaves or stays in all reports from here on."""
        self.leaving = leaving
        self._reports.put_nowait(WorkerReport(status=self.status, leaving=leaving, cache=cache))

    def unregister(self) -> None:
        """End the registration stream as a process that exits would."""
        self._reports.put_nowait(None)

    async def FlushCache(self, request: FlushCacheRequest, context: object) -> FlushCacheReply:
        self.flushes.append(request.timeout_ms)
        self.flushed_salts.append(request.salts)
        await asyncio.sleep(self.flush_takes_s)  # the time that its requests take to end
        return FlushCacheReply(error=self.flush_error)

    async def StartProfile(
        self, request: StartProfileRequest, context: object
    ) -> StartProfileReply:
        if self.profile_error is not None or self.profiling is not None:
            return StartProfileReply(error=self.profile_error or Error(code=CONFLICT))
        self.profiling = request
        return StartProfileReply()

    async def StopProfile(self, request: StopProfileRequest, context: object) -> StopProfileReply:
        stopped, self.profiling = self.profiling, None
        if self.profile_error is not None or stopped is None:
            return StopProfileReply(error=self.profile_error or Error(code=CONFLICT))
        return StopProfileReply(file=f"/traces/{self.worker_id}", steps=1, bytes=2)

    async def Metrics(self, request: MetricsRequest, context: object) -> MetricsReply:
        await self.page_given.wait()
        return MetricsReply(text=self.page)

    def _add_services(self, server: grpc.aio.Server) -> None:
        """More of them, for other roles."""

    async def _hold_registration(self, router: str, beat_s: float) -> None:
        async with self._credentials().dial_router(router, OPTIONS) as channel:
            call = worker_pb2_grpc.RegistryStub(channel).Register(self._beats(beat_s))
            async for reply in call:
                self.replies.put_nowait(reply)
            self.replies.put_nowait(None)

    async def _beats(self, beat_s: float) -> AsyncIterator[WorkerReport]:
        yield WorkerReport(hello=self.hello, status=self.status)
        while True:
            try:
                report = await asyncio.wait_for(self._reports.get(), beat_s)
            except TimeoutError:
                report = WorkerReport(
                    status=self.status,
                    leaving=self.leaving,
                    share=self.share,
                    routers=self.routers,
                )
            if report is None:
                return
            yield report


class FakeRank(FakeWorker):
    """A decode rank that says what the test tells it to: by `answer`, or message by message."""

    role = DECODE

    def __init__(
        self,
        worker_id: str,
        incarnation: int = 1,
        answer: Answer | None = None,
        **fingerprint: str,
    ) -> None:
        super().__init__(worker_id, incarnation, **fingerprint)
        self.answer = answer
        self.starts: asyncio.Queue[StartRequest] = asyncio.Queue()
        self.sent_together: list[int] = []
        """Requests of each message that started some."""
        self.cancels: asyncio.Queue[CancelRequest] = asyncio.Queue()
        self.recalls: asyncio.Queue[Recall] = asyncio.Queue()
        self.hellos: asyncio.Queue[Hello] = asyncio.Queue()
        self.introduced: asyncio.Queue[list[str]] = asyncio.Queue()
        """Worker ids, a message at a time."""
        self.mute = False
        """Neither heartbeats nor anything else: a stopped process, as its peers see it."""
        self._outgoing: list[asyncio.Queue[RankMessage | None]] = []

    def send(self, *requests: RequestTokens) -> None:
        """One step's message, on every session."""
        self.send_message(RankMessage(requests=requests))

    def send_message(self, message: RankMessage) -> None:
        """Send it on every session."""
        for queue in self._outgoing:
            queue.put_nowait(message)

    def hang_up(self) -> None:
        """End every session, as a process that dies would."""
        for queue in self._outgoing:
            queue.put_nowait(None)

    async def Session(
        self, messages: AsyncIterator[RouterMessage], context: object
    ) -> AsyncIterator[RankMessage]:
        queue: asyncio.Queue[RankMessage | None] = asyncio.Queue()
        reader = asyncio.create_task(self._listen(messages, queue))
        self._outgoing.append(queue)
        try:
            yield RankMessage(hello=self.hello)
            while (message := await queue.get()) is not None:
                if not self.mute:
                    yield message
        finally:
            self._outgoing.remove(queue)
            reader.cancel()

    def _add_services(self, server: grpc.aio.Server) -> None:
        worker_pb2_grpc.add_RankServicer_to_server(self, server)

    async def _listen(
        self, messages: AsyncIterator[RouterMessage], queue: "asyncio.Queue[RankMessage | None]"
    ) -> None:
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "heartbeat":
                queue.put_nowait(RankMessage(heartbeat=message.heartbeat))
            elif kind == "hello":
                self.hellos.put_nowait(message.hello)
            elif kind == "cancel":
                self.cancels.put_nowait(message.cancel)
            elif kind == "recall":
                self.recalls.put_nowait(message.recall)
            elif kind == "prefills":
                self.introduced.put_nowait([each.worker_id for each in message.prefills.workers])
            elif kind == "start":
                self.sent_together.append(1)
                self._start(message.start, queue)
            elif kind == "starts":
                self.sent_together.append(len(message.starts.requests))
                for start in message.starts.requests:
                    self._start(start, queue)

    def _start(self, start: StartRequest, queue: "asyncio.Queue[RankMessage | None]") -> None:
        self.starts.put_nowait(start)
        if self.answer is not None:
            for tokens in self.answer(start):
                queue.put_nowait(RankMessage(requests=[tokens]))


def tokens_of(
    start: StartRequest, ids: Sequence[int], first_index: int = 0, last: bool = False
) -> RequestTokens:
    """One step's part for one request; `last` finishes it by length."""
    done = None
    if last:
        usage = Usage(prompt_tokens=len(start.prompt_ids), completion_tokens=first_index + len(ids))
        timings = Timings(prefill_queue_us=1, prefill_us=2, transfer_us=3, decode_wait_us=4)
        timings.first_decode_step_us = 5
        done = Finished(reason=LENGTH, usage=usage, timings=timings)
    return RequestTokens(
        request_id=start.request_id,
        attempt=start.attempt,
        first_index=first_index,
        token_ids=ids,
        finished=done,
        held_us=0 if first_index else 6,
    )


async def within(work: Awaitable[T]) -> T:
    """The result, or a TimeoutError at the test's deadline."""
    return await asyncio.wait_for(work, DEADLINE_S)
