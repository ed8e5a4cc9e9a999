"""Attacks on the gRPC port for clients, over real connections."""

import asyncio
import socket
from contextlib import suppress

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
    wait_of,
)
from kit.polling import until

from baton.api.access.client_limits import Refusal
from baton.api.server import surplus_connections
from baton.proto import inference_pb2, inference_pb2_grpc


async def test_a_call_whose_message_does_not_come_ends_with_a_reason() -> None:
    async with serving(body_s=SHORT_S) as server:
        call = (await server.channel()).stream_stream(GENERATE)(timeout=DEADLINE_S)
        assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no message came within 0.3 s" in await call.details()
        assert server.refusals(Refusal.BODY_TIME) == 1
        assert server.inference.begun == 0 and server.value("grpc_streams") == 0


async def test_a_call_without_a_message_ends_with_a_reason() -> None:
    async with serving() as server:
        call = (await server.channel()).stream_stream(GENERATE)(timeout=DEADLINE_S)
        await call.done_writing()
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_does_not_read_is_ended_and_others_are_served() -> None:
    async with serving(write_s=SHORT_S) as server:
        stuck = generate(await server.channel())
        await asyncio.wait_for(server.inference.over.wait(), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 1
        assert server.value("grpc_streams") == 0
        other = generate(await server.channel())
        await until_read([other])
        other.cancel()
        with pytest.raises(grpc.aio.AioRpcError, match=r"was not read for 0\.3 s"):
            while await asyncio.wait_for(stuck.read(), DEADLINE_S) is not grpc.aio.EOF:
                pass


async def test_calls_beyond_the_limit_are_refused_but_for_health() -> None:
    async with serving(grpc_streams=3, client_grpc_streams=3) as server:
        calls = [generate(await server.channel()) for _ in range(3)]
        await until_read(calls)
        assert server.value("grpc_streams") == 3
        call = (await server.channel()).unary_stream(GENERATE)(b"", timeout=DEADLINE_S)
        assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "3 calls are open" in await call.details()
        assert await wait_of(call) == ("1", "1000")
        assert await server.is_healthy()
        assert server.refusals(Refusal.STREAMS) == 1
        for call in calls:
            call.cancel()
        await asyncio.wait_for(server.inference.over.wait(), DEADLINE_S)
        again = generate(await server.channel())
        await until_read([again])
        again.cancel()


async def test_a_connection_beyond_the_limit_is_refused_and_a_half_open_one_closed() -> None:
    async with serving(connections=2, client_connections=2, header_s=SHORT_S) as server:
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as half_open:
            while await asyncio.to_thread(half_open.recv, 1 << 16):
                pass
        calls = [generate(await server.channel()) for _ in range(2)]
        await until_read(calls)
        third = generate(await server.channel())
        assert await code_of(third) is grpc.StatusCode.UNAVAILABLE
        for call in calls:
            call.cancel()


async def test_calls_on_one_connection_too_many_of_an_address_are_refused_but_for_health() -> None:
    async with serving(client_connections=2) as server:
        channels = [await server.channel() for _ in range(2)]
        calls = [generate(channel) for channel in (*channels, *channels)]
        await until_read(calls)
        for method in (GENERATE, "/grpc.health.v1.Health/Watch"):
            third = (await server.channel()).unary_stream(method)(b"", timeout=DEADLINE_S)
            assert await code_of(third) is grpc.StatusCode.RESOURCE_EXHAUSTED, method
            assert "this address has 2 connections with calls" in await third.details()
            assert await wait_of(third) == ("1", "1000")
        assert await server.is_healthy()
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) == 2
        for call in calls[::2]:
            call.cancel()
        await until_read([calls[1]])
        await until(lambda: server.value("grpc_streams") <= 2)
        again = generate(await server.channel())
        await until_read([again])
        for call in (again, *calls):
            call.cancel()


async def test_connections_without_calls_beyond_an_addresss_limit_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(surplus_connections, "LOOK_S", 0.01)
    async with serving(client_connections=3) as server:
        running = generate(await server.channel())
        await until_read([running])
        first = [await server.idle("127.0.0.1") for _ in range(4)]
        second = [await server.idle("127.0.0.2") for _ in range(4)]
        await until(lambda: sum(task.done() for task in (*first, *second)) >= 3)
        for _ in range(10):
            await until_read([running])
            await asyncio.sleep(0.01)  # a look at surplus connections
        assert [sum(task.done() for task in each) for each in (first, second)] == [2, 1]
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) == 3
        running.cancel()


async def test_metadata_beyond_the_limit_is_refused() -> None:
    async with serving(header_bytes=4096) as server:
        stub = inference_pb2_grpc.InferenceStub(await server.channel())
        call = stub.Generate(
            inference_pb2.GenerateRequest(text="hi"),
            metadata=(("x-flood", "a" * 20_000),),
            timeout=DEADLINE_S,
        )
        assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.inference.begun == 0


async def test_a_message_beyond_the_limit_is_refused() -> None:
    async with serving() as server:
        stub = inference_pb2_grpc.InferenceStub(await server.channel())
        call = stub.Generate(
            inference_pb2.GenerateRequest(text="a" * (2 << 20)), timeout=DEADLINE_S
        )
        assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.inference.begun == 0


PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)


def said(server: Server, first: bytes, more: bytes = b"") -> bytes:
    """Send `first`, then `more` again and again; return all that came until the server closed."""
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as client:
        client.sendall(first)
        reply = b""
        with suppress(ConnectionError):
            while part := client.recv(1 << 16):
                reply += part
                with suppress(ConnectionError):  # it is closed; what it said last is still there
                    client.sendall(more)
        return reply


async def test_a_flood_of_pings_ends_the_connection() -> None:
    async with serving() as server:
        reply = await asyncio.to_thread(said, server, PREFACE + PING, PING)
        assert b"too_many_pings" in reply
        assert await server.is_healthy()


async def test_an_idle_connection_is_closed() -> None:
    async with serving(grpc_idle_s=SHORT_S) as server:
        assert b"connection idle" in await asyncio.to_thread(said, server, PREFACE)
