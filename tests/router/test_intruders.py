"""Attacks on a router's registry, over real gRPC: each is refused and names nothing."""

from pathlib import Path

import grpc
import pytest
from certificates import CLUSTER, credentials_of
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from grpc import aio
from intruders import every_unproven_call, status_by_role
from router_neighbours import Cluster, replies_of

from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import DECODE, PERMISSION_DENIED, PREFILL
from baton.proto.worker_pb2 import RegistryReply, WorkerReport
from baton.rpc.access import CALLERS
from baton.rpc.channel_options import OPTIONS

ROUTER = f"router.{CLUSTER}.baton"
REGISTER = "/baton.v1.Registry/Register"


async def answers(cluster: Cluster, rank: FakeRank) -> None:
    """One request is answered by `rank` as if nothing had happened."""
    call = cluster.generate([11, 12], max_tokens=2)
    start = await within(rank.starts.get())
    rank.send(tokens_of(start, [20, 21], last=True))
    replies = await within(replies_of(call))
    assert [i for reply in replies for i in reply.token_ids] == [20, 21]


async def test_clients_find_no_registry_at_their_port(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        for method in (m for m in CALLERS if "health" not in m):
            call = cluster.channel.unary_unary(method)(b"", timeout=DEADLINE_S)
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED, method


async def test_nobody_registers_who_proves_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        address = cluster.started.internal_address
        async for what, status, details in every_unproven_call(address, ROUTER, list(CALLERS)):
            assert status is grpc.StatusCode.UNAVAILABLE, what
            assert CLUSTER not in details and "toy" not in details, details
        assert set(await cluster.workers()) == {"p0", "d0"}
        await answers(cluster, rank)


async def test_only_workers_register(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        found = status_by_role(cluster.started.internal_address, ROUTER, [REGISTER])
        async for role, _, status, _ in found:
            refused = status is grpc.StatusCode.PERMISSION_DENIED
            assert refused is (role not in CALLERS[REGISTER]), role


async def register(cluster: Cluster, role: str, name: str, report: WorkerReport) -> RegistryReply:
    """Send a first report with the certificate of (role, name), and return the reply."""
    credentials = credentials_of(role, name)
    async with credentials.dial_router(cluster.started.internal_address, OPTIONS) as channel:
        call = worker_pb2_grpc.RegistryStub(channel).Register(timeout=DEADLINE_S)
        await call.write(report)
        reply: RegistryReply = await call.read()
        assert await call.read() is aio.EOF
        return reply


@pytest.mark.parametrize(
    ("role", "name", "claimed"),
    [
        ("decode", "d1", {"worker_id": "d0", "incarnation": 99}),  # steals the identity
        ("decode", "d1", {"worker_id": "d77"}),  # an invented rank
        ("prefill", "p0", {"worker_id": "p0", "role": DECODE}),  # another role's
        ("prefill", "d0", {"worker_id": "d0", "incarnation": 99}),  # the name in another role
        ("decode", "d1", {"worker_id": "p0", "role": PREFILL, "incarnation": 99}),
        ("decode", "d1", {"worker_id": "d1", "role": PREFILL}),
        ("decode", "d1", {"worker_id": "d1"}),  # d0's number, so what clients send to that rank
        ("decode", "stranger", {"worker_id": "stranger"}),  # has none
    ],
)
async def test_a_worker_registers_as_itself_alone(
    tmp_path: Path, role: str, name: str, claimed: dict[str, object]
) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        hello = rank.hello  # of rank 0
        for field, value in claimed.items():
            setattr(hello.worker, field, value)
        hello.fingerprint["model"] = "wrong"  # which nobody is told who is not who he says
        refused = (await register(cluster, role, name, WorkerReport(hello=hello))).error
        assert refused.code == PERMISSION_DENIED
        assert not refused.expected and not refused.actual
        assert "d0" not in refused.message and "toy" not in refused.message
        seen = await cluster.workers()
        assert set(seen) == {"p0", "d0"} and seen["d0"]["incarnation"] == 1
        await answers(cluster, rank)


async def test_a_worker_with_anothers_address_gets_nothing_and_takes_nothing(
    tmp_path: Path,
) -> None:
    """d1 registers as itself, but where d0 listens: the router asks who is there."""
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        liar = FakeRank("d1")
        liar.address = rank.address
        reply = await liar.register(cluster.started.internal_address)
        assert not reply.HasField("error")
        sessions = rank.hellos.qsize()
        for _ in range(3):
            await answers(cluster, rank)
        assert not (await cluster.workers())["d1"]["ready"]
        assert rank.hellos.qsize() == sessions
        await liar.__aexit__(None, None, None)
