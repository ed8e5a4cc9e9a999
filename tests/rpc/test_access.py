"""The table of who may call what: complete, and in force over real TLS."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any

import grpc
import pytest
from certificates import CLUSTER, credentials_of
from grpc import aio
from grpc_health.v1 import health_pb2

from baton.api.access.access import RPCS
from baton.core.errors import ApiError
from baton.proto import common_pb2, handoff_pb2, inference_pb2, worker_pb2
from baton.rpc.access import CALLERS, AccessInterceptor, caller, check_claim
from baton.rpc.channel_options import OPTIONS
from baton.rpc.identity import Identity, ProcessRole
from baton.transfer.channels.grpc.receiver import METHOD, WHOLE_METHOD

DEADLINE_S = 60.0
SERVER = Identity(ProcessRole.DECODE, "d0", CLUSTER)
NAMES = {role: f"{role}-7" for role in ProcessRole}


def methods_of(*modules: ModuleType) -> set[str]:
    """Return every RPC that the modules' descriptors declare."""
    return {
        f"/{service.full_name}/{method.name}"
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_every_rpc_stands_in_the_table_of_processes_or_in_that_of_clients() -> None:
    ours = methods_of(common_pb2, handoff_pb2, inference_pb2, worker_pb2)
    ours |= {METHOD, WHOLE_METHOD}
    missing = ours - CALLERS.keys() - RPCS.keys()
    assert not missing, f"say in rpc/access.py who may call {missing}"
    assert CALLERS.keys() - methods_of(health_pb2) <= ours, "the table names an RPC that is gone"
    assert methods_of(inference_pb2).isdisjoint(CALLERS), "processes do not infer"


def test_proto_has_no_file_that_the_walk_above_leaves_out() -> None:
    from pathlib import Path

    found = {p.stem for p in Path(common_pb2.__file__).parent.glob("*.proto")}
    assert found == {"common", "handoff", "inference", "worker"}


async def _answer(messages: object, context: aio.ServicerContext) -> None:
    proven = caller(context)
    await context.write(b"" if proven is None else proven.dns_name.encode())


@asynccontextmanager
async def everything_served() -> AsyncIterator[str]:
    """One server that would answer every RPC of the table and one that is in none."""
    server = aio.server(interceptors=[AccessInterceptor(credentials_of(SERVER.role, SERVER.name))])
    for name in [*CALLERS, "/baton.v1.New/Thing"]:
        _, service, method = name.split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(_answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_secure_port("127.0.0.1:0", credentials_of("decode", "d0").server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def status_of(channel: aio.Channel, method: str) -> grpc.StatusCode:
    call = channel.unary_unary(method)(b"", timeout=DEADLINE_S)
    status = await call.code()
    assert "d0" not in await call.details(), "a refusal names the server's worker"
    return status


async def test_each_role_reaches_what_the_table_gives_it_and_nothing_else() -> None:
    async with everything_served() as address, AsyncExitStack() as stack:
        for role, name in NAMES.items():
            dial = credentials_of(role, name).dial(address, SERVER.dns_name, OPTIONS)
            channel = await stack.enter_async_context(dial)
            for method in [*CALLERS, "/baton.v1.New/Thing"]:
                allowed = role in CALLERS.get(method, ())
                wanted = grpc.StatusCode.OK if allowed else grpc.StatusCode.PERMISSION_DENIED
                assert await status_of(channel, method) is wanted, (role, method)


async def test_a_certificate_for_another_cluster_opens_nothing() -> None:
    """One authority may sign for several clusters."""
    other = credentials_of("router", "router-0", cluster="elsewhere")
    async with everything_served() as address:
        async with other.dial(address, SERVER.dns_name, OPTIONS) as channel:
            for method in CALLERS:
                assert await status_of(channel, method) is grpc.StatusCode.PERMISSION_DENIED


async def _unary(request: bytes, context: aio.ServicerContext) -> bytes:
    return b"unary"


async def _generator(request: object, context: aio.ServicerContext) -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


async def _collected(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> bytes:
    return b"".join([m async for m in messages])


@pytest.mark.parametrize(
    ("kind", "behaviour", "expected"),
    [
        ("unary_unary", _unary, [b"unary"]),
        ("unary_stream", _generator, [b"one", b"two"]),
        ("stream_stream", _generator, [b"one", b"two"]),
        ("stream_unary", _collected, [b"ab"]),
    ],
)
async def test_handlers_of_every_kind_are_served_and_guarded(
    kind: str, behaviour: object, expected: list[bytes]
) -> None:
    server = aio.server(interceptors=[AccessInterceptor(credentials_of(SERVER.role, SERVER.name))])
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(behaviour)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("baton.v1.Rank", {"Session": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", credentials_of("decode", "d0").server())
    await server.start()
    try:
        replies = {}
        for role in (ProcessRole.ROUTER, ProcessRole.PREFILL):
            dial = credentials_of(role, NAMES[role]).dial
            async with dial(f"127.0.0.1:{port}", SERVER.dns_name, OPTIONS) as channel:
                sent = [b"a"] if kind.startswith("unary") else [b"a", b"b"]
                method = channel.stream_stream("/baton.v1.Rank/Session")
                allowed = role is ProcessRole.ROUTER
                # Whoever is refused writes nothing: a write to a call that has just ended may hide
                # its code.
                writes = allowed or kind.startswith("unary")
                call = method(iter(sent) if writes else None, timeout=DEADLINE_S)
                replies[role] = [m async for m in call] if allowed else await call.code()
        assert replies[ProcessRole.ROUTER] == expected
        assert replies[ProcessRole.PREFILL] is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await server.stop(None)


class _Proven:
    """A server's context, as far as the check of a Hello reads it."""

    def __init__(self, identity: Identity | None) -> None:
        self._names = [] if identity is None else [n.encode() for n in identity.dns_names]

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {"transport_security_type": [b"ssl"], "peer_dns": self._names}


@pytest.mark.parametrize(
    ("role", "name", "hello", "right"),
    [
        ("decode", "d3", {"worker_id": "d3", "role": common_pb2.DECODE, "rank": 3}, True),
        ("decode", "d3", {"worker_id": "d4", "role": common_pb2.DECODE, "rank": 3}, False),
        ("decode", "d3", {"worker_id": "d3", "role": common_pb2.DECODE, "rank": 4}, False),
        ("decode", "d3", {"worker_id": "d3", "role": common_pb2.DECODE}, False),
        ("decode", "d", {"worker_id": "d", "role": common_pb2.DECODE}, False),
        ("prefill", "p3", {"worker_id": "p3", "role": common_pb2.PREFILL}, True),
        ("decode", "d3", {"worker_id": "d3", "role": common_pb2.PREFILL}, False),
        ("prefill", "d3", {"worker_id": "d3", "role": common_pb2.DECODE}, False),
        ("decode", "d3", {}, False),
        ("router", "router-0", {"worker_id": "d3", "role": common_pb2.DECODE}, False),
    ],
)
def test_a_hello_must_be_that_of_the_certificate(
    role: str, name: str, hello: dict[str, Any], right: bool
) -> None:
    said = common_pb2.Hello(worker=common_pb2.WorkerIdentity(**hello))
    context = _Proven(Identity(ProcessRole(role), name, CLUSTER))
    if right:
        check_claim(context, said)
    else:
        with pytest.raises(ApiError) as refused:
            check_claim(context, said)
        assert "d3" not in str(refused.value) + refused.value.expected + refused.value.actual


def test_a_router_says_its_own_name() -> None:
    context = _Proven(Identity(ProcessRole.ROUTER, "router-0", CLUSTER))
    check_claim(context, common_pb2.Hello(router_id="router-0/ab12"))
    for wrong in ("router-1/ab12", "", "router-0x"):
        with pytest.raises(ApiError):
            check_claim(context, common_pb2.Hello(router_id=wrong))
    with pytest.raises(ApiError):
        check_claim(_Proven(None), common_pb2.Hello(router_id="router-0/ab12"))
