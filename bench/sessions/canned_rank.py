"""A decode rank without an engine: it speaks `Rank.Session` and answers with canned tokens."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from grpc import aio

from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.streams import first_of

REPORT_S = 1.0
"""Seconds between two reports: those of a worker whose load does not change."""
RETRY_S = 0.2
MAX_RUNNING = 64
FIRST_TOKEN, TOKENS = 40, 80
"""The canned tokens: printable characters of the bench's tokenizer."""


@dataclass
class _Running:
    start: worker_pb2.StartRequest
    given: int = 0  # output tokens so far

    def add_to(self, message: worker_pb2.RankMessage) -> bool:
        """Add the next token. Return True for the last one.

        As a real rank: the first, the last and those with log probabilities stand in parts, all
        others in the step's columns.
        """
        sampling = self.start.sampling
        last = self.given + 1 == sampling.max_tokens
        scored = sampling.HasField("logprobs")
        if self.start.handle and self.given and not last and not scored:
            message.step.handles.append(self.start.handle)
            message.step.indices.append(self.given)
            message.step.token_ids.append(FIRST_TOKEN + self.given % TOKENS)
            self.given += 1
            return False
        part = message.requests.add()
        part.request_id = self.start.request_id
        part.attempt = self.start.attempt
        part.first_index = self.given
        part.token_ids.append(FIRST_TOKEN + self.given % TOKENS)
        if scored:
            part.logprobs.add(
                token_id=part.token_ids[0],
                logprob=-0.5,
                top_ids=range(FIRST_TOKEN, FIRST_TOKEN + sampling.logprobs),
                top_logprobs=[-0.5] * sampling.logprobs,
            )
        self.given += 1
        if self.given < sampling.max_tokens:
            return False
        part.finished.reason = common_pb2.LENGTH
        part.finished.usage.prompt_tokens = len(self.start.prompt_ids)
        part.finished.usage.completion_tokens = self.given
        return True


@dataclass
class CannedRank(worker_pb2_grpc.RankServicer):
    """One rank. A step gives each of its requests one token, in one message a router."""

    number: int
    credentials: Credentials
    step_s: float
    eager: bool = False
    """The first token comes at once, not with the next step."""
    address: str = ""
    sent: int = 0
    """Messages with tokens: fewer than steps where the router reads slowly."""
    _server: aio.Server = field(default_factory=lambda: aio.server(options=OPTIONS))

    async def start(self) -> None:
        """Listen on any free port of loopback."""
        worker_pb2_grpc.add_RankServicer_to_server(self, self._server)
        port = self._server.add_secure_port("127.0.0.1:0", self.credentials.server())
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    @property
    def hello(self) -> common_pb2.Hello:
        name = self.credentials.identity.name
        return hello_of(name, common_pb2.DECODE, self.address, self.number)

    async def Session(
        self, messages: AsyncIterator[worker_pb2.RouterMessage], context: aio.ServicerContext
    ) -> None:
        running: dict[str, _Running] = {}
        pending = worker_pb2.RankMessage()
        due = asyncio.Event()

        def begin(start: worker_pb2.StartRequest) -> None:
            request = _Running(start, len(start.output_ids))
            if not self.eager or not request.add_to(pending):
                running[start.request_id] = request
            if self.eager:
                due.set()

        async def read() -> None:
            async for message in messages:
                match message.WhichOneof("kind"):
                    case "start":
                        begin(message.start)
                    case "starts":
                        for start in message.starts.requests:
                            begin(start)
                    case "cancel":
                        running.pop(message.cancel.request_id, None)
                    case "heartbeat":
                        pending.heartbeat.CopyFrom(message.heartbeat)
                        due.set()

        async def step() -> None:
            loop = asyncio.get_running_loop()
            at = loop.time() + random.random() * self.step_s  # ranks do not step in time
            while True:
                at = max(at + self.step_s, loop.time())
                await asyncio.sleep(at - loop.time())
                for request in list(running.values()):
                    if request.add_to(pending):
                        del running[request.start.request_id]
                if running or pending.requests:
                    due.set()

        async def write() -> None:
            nonlocal pending
            while True:
                await due.wait()
                due.clear()
                message, pending = pending, worker_pb2.RankMessage()
                self.sent += bool(message.requests or message.HasField("step"))
                await context.write(message)

        await context.write(worker_pb2.RankMessage(hello=self.hello))
        await first_of(read(), step(), write())


def hello_of(name: str, role: common_pb2.Role, address: str, number: int) -> common_pb2.Hello:
    """Return the Hello of a worker of this bench."""
    identity = common_pb2.WorkerIdentity(
        worker_id=name, incarnation=1, address=address, role=role, rank=number
    )
    return common_pb2.Hello(
        protocol_major=PROTOCOL_MAJOR,
        protocol_minor=PROTOCOL_MINOR,
        worker=identity,
        fingerprint={"model": "canned"},
    )


async def stay_registered(router: str, hello: common_pb2.Hello, credentials: Credentials) -> None:
    """Register with a router and report as an engine under steady load does, until cancelled."""
    status = worker_pb2.WorkerStatus(worker=hello.worker, max_running=MAX_RUNNING)

    async def reports() -> AsyncIterator[worker_pb2.WorkerReport]:
        yield worker_pb2.WorkerReport(hello=hello, status=status)
        while True:
            await asyncio.sleep(REPORT_S)
            yield worker_pb2.WorkerReport(status=status)

    while True:  # a router on a full machine may lose a rank for a while
        async with credentials.dial_router(router, OPTIONS) as channel:
            with suppress(aio.AioRpcError):
                async for _ in worker_pb2_grpc.RegistryStub(channel).Register(reports()):
                    pass
        await asyncio.sleep(RETRY_S)
