"""Calls without end that ask the gRPC port for nothing, beside clients that ask for something."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from api.attacked_grpc import (
    DEADLINE_S,
    GENERATE,
    PREFACE,
    SHORT_S,
    Server,
    code_of,
    generate,
    serving,
    until_read,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.polling import until

from baton.api.access.client_limits import LEAST_IDLE, ClientLimits, Refusal
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.proto import inference_pb2, inference_pb2_grpc

LIMITS = ClientLimits()
FLOOD = LIMITS.grpc_streams + 100  # more than all of them
WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ALICE, MALLORY = new_key(), new_key()
Metadata = tuple[tuple[str, str], ...]


def with_key(text: str) -> Metadata:
    return (("authorization", f"Bearer {text}"),)


@pytest.fixture
def keys(tmp_path: Path) -> KeyGate:
    file, infer = tmp_path / "keys.json", frozenset({KeyScope.INFER})
    named = (("alice", ALICE), ("mallory", MALLORY))
    write_keys(file, [Key(name, digest_of(text), infer) for name, text in named])
    return KeyGate(Keyring(file))


def watch(channel: grpc.aio.Channel, metadata: Metadata = ()) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(), metadata=metadata
    )


def silent(channel: grpc.aio.Channel, method: str, metadata: Metadata = ()) -> Any:
    return channel.stream_stream(method)(metadata=metadata)


async def questions(count: int) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    """Ask for the services so often, and leave the stream open."""
    for _ in range(count):
        yield reflection_pb2.ServerReflectionRequest(list_services="")
    await asyncio.Event().wait()


def reflect(channel: grpc.aio.Channel, metadata: Metadata = (), count: int = 1) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    return stub.ServerReflectionInfo(questions(count), metadata=metadata)


def flooding(kind: str, channel: grpc.aio.Channel, metadata: Metadata) -> Any:
    if kind == "watch":
        return watch(channel, metadata)
    if kind == "reflection":
        return reflect(channel, metadata)
    return silent(channel, kind, metadata)


async def ask(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    """Have a text tokenised; fails where the server refuses."""
    stub = inference_pb2_grpc.InferenceStub(channel)
    request = inference_pb2.TokenizeRequest(text="hi")
    reply = await stub.Tokenize(request, metadata=metadata, timeout=DEADLINE_S)
    assert list(reply.ids) == [7]


async def until_open(server: Server, most: float) -> None:
    await until(lambda: server.value("grpc_streams") <= most)


@pytest.mark.parametrize(
    ("kind", "has_keys"),
    [
        *(
            (kind, has_keys)
            for kind in ("watch", "reflection", GENERATE)
            for has_keys in (False, True)
        ),
        *((kind, False) for kind in (CHECK, WATCH, REFLECTION)),
    ],
)
async def test_clients_are_answered_beside_a_flood_from_their_own_address(
    kind: str, has_keys: bool, keys: KeyGate
) -> None:
    mine: Metadata = with_key(ALICE) if has_keys else ()
    theirs: Metadata = ()
    if has_keys and kind != "watch":
        theirs = with_key(MALLORY)
    async with serving(keys=keys if has_keys else None) as server:
        # Not more than gRPC opens on a connection at once.
        attackers = [await server.channel() for _ in range(8)]
        clients = [await server.channel() for _ in range(16)]
        flood = [flooding(kind, attackers[i % 8], theirs) for i in range(FLOOD)]
        for _ in range(3):
            await asyncio.gather(*(ask(channel, mine) for channel in clients))
        await until(
            lambda: server.refusals(Refusal.STREAMS) >= FLOOD - LIMITS.idle_grpc_streams_of_client
        )
        await asyncio.gather(*(ask(channel, mine) for channel in clients))
        assert 0 < server.value("grpc_streams") <= LIMITS.idle_grpc_streams_of_client
        for call in flood:
            call.cancel()
        await until_open(server, 0)


async def test_a_watch_gives_way_to_a_newer_one_of_its_own_address() -> None:
    async with serving(grpc_streams=8) as server:
        first = watch(await server.channel())
        await until_read([first])
        channel = await server.channel()
        newer = [watch(channel) for _ in range(LEAST_IDLE)]
        await until_read(newer)
        assert await code_of(first) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "too many calls ask for nothing" in await first.details()
        assert server.refusals(Refusal.STREAMS) == 1
        assert server.value("grpc_streams") == LEAST_IDLE
        server.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await until_read(newer)
        for call in newer:
            call.cancel()


async def test_one_key_and_one_address_have_a_share_of_the_calls(keys: KeyGate) -> None:
    async with serving(keys=keys, grpc_streams=4, client_grpc_streams=2) as server:

        async def generating(key: str) -> Any:
            stub = inference_pb2_grpc.InferenceStub(await server.channel())
            request = inference_pb2.GenerateRequest(text="hi")
            return stub.Generate(request, metadata=with_key(key), timeout=DEADLINE_S)

        running = [await generating(ALICE), await generating(MALLORY)]
        await until_read(running)
        third = await generating(ALICE)
        assert await code_of(third) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "this address has 2 calls open" in await third.details()
        for call in running:
            call.cancel()


async def test_an_idle_watch_and_an_idle_reflection_stream_end() -> None:
    async with serving(grpc_idle_s=SHORT_S) as server:
        for call in (watch(await server.channel()), reflect(await server.channel(), count=3)):
            with pytest.raises(grpc.aio.AioRpcError, match=r"the call was idle for 0\.3 s"):
                while await asyncio.wait_for(call.read(), DEADLINE_S) is not grpc.aio.EOF:
                    pass
            assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until_open(server, 0)


@pytest.mark.parametrize("method", [CHECK, WATCH, REFLECTION])
async def test_a_call_that_sends_no_message_ends_after_the_headers_time(method: str) -> None:
    async with serving(header_s=SHORT_S) as server:
        call = silent(await server.channel(), method)
        assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no message came within 0.3 s" in await call.details()
        await until_open(server, 0)


async def test_a_silent_call_keeps_nobody_out_and_its_late_message_is_refused() -> None:
    async with serving(grpc_streams=1) as server:
        quiet = silent(await server.channel(), GENERATE)
        await until(lambda: server.value("grpc_streams"))
        running = generate(await server.channel())
        await until_read([running])
        await quiet.write(inference_pb2.GenerateRequest(text="hi").SerializeToString())
        assert await code_of(quiet) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 calls are open" in await quiet.details()
        running.cancel()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
    return head + payload


def headers(fields: dict[str, str]) -> bytes:
    """Return header fields as HPACK literals."""
    parts = [(name.encode(), value.encode()) for name, value in fields.items()]
    return b"".join(
        bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in parts
    )


NO_ROOM = PREFACE[:24] + frame(4, 0, 0, struct.pack(">HI", 4, 0))
"""The preface of a client that lets the server send no byte of a message."""
WATCH_CALL = frame(
    1, 4, 1,
    headers({":method": "POST", ":scheme": "http", ":path": WATCH, ":authority": "a",
             "te": "trailers", "content-type": "application/grpc"}),
) + frame(0, 1, 1, bytes(5))  # fmt: skip


async def test_a_watcher_that_does_not_read_keeps_no_status_from_the_others() -> None:
    async with serving() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        server.open.callback(writer.transport.abort)
        writer.write(NO_ROOM + WATCH_CALL)
        await until(lambda: server.value("grpc_streams"))
        other = watch(await server.channel())
        await until_read([other])
        server.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        shown = await asyncio.wait_for(other.read(), DEADLINE_S)
        assert shown.status == health_pb2.HealthCheckResponse.NOT_SERVING
        other.cancel()


async def test_a_watcher_that_does_not_read_is_ended() -> None:
    async with serving(write_s=SHORT_S) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        server.open.callback(writer.transport.abort)
        writer.write(NO_ROOM + WATCH_CALL)
        await until(lambda: server.refusals(Refusal.SLOW_READER))
        await until_open(server, 0)
