"""The gRPC port for clients, as its attackers and its clients see it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_gate import KeyGate
from baton.api.grpc.health import HealthServicer
from baton.api.grpc.inference import InferenceServicer
from baton.api.server.client_guard import ClientGuard
from baton.api.server.grpc_server import INFERENCE, GrpcServer
from baton.core.supervised import ProcessSupervisor
from baton.proto import inference_pb2, inference_pb2_grpc

DEADLINE_S = 60.0
"""The deadline of every wait; only a broken server reaches it."""
SHORT_S = 0.3
GENERATE = f"/{INFERENCE}/Generate"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
OWN = ("grpc.use_local_subchannel_pool", 1)


class Inference(inference_pb2_grpc.InferenceServicer):
    """Generates without an end, until its caller leaves, and makes one token of any text."""

    def __init__(self) -> None:
        self.begun = 0
        self.over = asyncio.Event()

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: object
    ) -> AsyncIterator[inference_pb2.GenerateReply]:
        self.begun += 1
        try:
            while True:
                yield inference_pb2.GenerateReply(text="x" * 65536)
                await asyncio.sleep(0)
        finally:
            self.over.set()

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: object
    ) -> inference_pb2.TokenizeReply:
        return inference_pb2.TokenizeReply(ids=[7])


@dataclass
class Server:
    """A server under attack."""

    port: int
    inference: Inference
    health: HealthServicer
    registry: CollectorRegistry
    open: AsyncExitStack

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"baton_router_{name}", labels) or 0.0

    def refusals(self, reason: Refusal) -> float:
        return self.value("refusals_total", reason=reason.value)

    async def channel(self, *options: tuple[str, int]) -> grpc.aio.Channel:
        made = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=[OWN, *options])
        return await self.open.enter_async_context(made)

    async def idle(self, address: str) -> "asyncio.Task[bytes]":
        """Open a connection from an address of loopback and call nothing on it. The task ends when
        the server closes it.
        """
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0)
        )
        self.open.callback(lambda: writer.transport.abort())  # it closes itself when forgotten
        writer.write(PREFACE)
        return asyncio.create_task(reader.read())

    async def is_healthy(self) -> bool:
        stub = health_pb2_grpc.HealthStub(await self.channel())
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def serving(
    connections: int = 100, keys: KeyGate | None = None, **limits: Any
) -> AsyncIterator[Server]:
    registry = CollectorRegistry()
    metrics = ClientMetrics("router", registry)
    guard = ClientGuard(ClientLimits(**limits), metrics, connections, connections)
    inference = Inference()
    grpc_server = GrpcServer(
        cast(InferenceServicer, inference),
        "127.0.0.1",
        0,
        ProcessSupervisor(),
        max_body_bytes=1 << 20,
        keys=keys,
        guard=guard,
    )
    grpc_server.health.set("", health_pb2.HealthCheckResponse.SERVING)
    await grpc_server.start()
    async with AsyncExitStack() as open_:
        yield Server(grpc_server.port, inference, grpc_server.health, registry, open_)
    await grpc_server.stop(0)


def generate(channel: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceStub(channel).Generate(
        inference_pb2.GenerateRequest(text="hi"), timeout=DEADLINE_S
    )


async def code_of(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await asyncio.wait_for(call.code(), DEADLINE_S)
    return code


async def wait_of(call: Any) -> tuple[str, str]:
    """Return when a refusal says to try again: in seconds, and in milliseconds for gRPC."""
    found = dict(await call.trailing_metadata())
    return found["retry-after"], found["grpc-retry-pushback-ms"]


async def until_read(calls: Iterable[Any]) -> None:
    for call in calls:
        assert await asyncio.wait_for(call.read(), DEADLINE_S) is not grpc.aio.EOF
