"""Every work that runs beside its maker in a router, made to fail."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from broken_works import fail, work_of
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.polling import until, until_answered
from router_neighbours import Cluster, random_ids, replies_of

from baton.core import supervised
from baton.core.supervised import OnFailure
from baton.proto.worker_pb2 import RequestTokens, StartRequest

ENDS = ("leases",)
ANEW = (
    "certificates",
    "recalls",
    "gRPC health",
    "session with d0",
    "HTTP server",
    "deadlines of HTTP clients",
    "surplus gRPC connections",
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.01)


@dataclass
class Routed:
    """A router with a prefill worker and a rank, which answers as the test wants."""

    cluster: Cluster
    rank: FakeRank

    async def health(self) -> int:
        check = health_pb2_grpc.HealthStub(self.cluster.channel).Check
        request = health_pb2.HealthCheckRequest(service="baton.v1.Inference")
        status: int = (await check(request, timeout=DEADLINE_S)).status
        return status


@asynccontextmanager
async def routed(folder: Path) -> AsyncIterator[Routed]:
    async with Cluster(folder) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        yield Routed(cluster, rank)


def answer(start: StartRequest) -> list[RequestTokens]:
    return [tokens_of(start, [20, 21], last=True)]


async def test_the_lists_here_have_every_work(tmp_path: Path) -> None:
    async with routed(tmp_path) as router:
        assert {work.name for work in router.cluster.owner.works} == {*ENDS, *ANEW}


@pytest.mark.parametrize("name", ENDS)
async def test_a_router_ends_that_has_lost_what_it_cannot_do_without(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(7)
    async with routed(tmp_path) as router:
        owner = router.cluster.owner
        running = router.cluster.generate(random_ids(rng, 9), max_tokens=4)
        await within(router.rank.starts.get())
        await fail(await work_of(owner, name))
        await within(owner.ended())
        reason = f"{name} ended: MadeToFail: as the test wants it"
        assert owner.reason == reason
        critical = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
        assert critical == [f"{reason}; this process ends"]
        for call in (running, router.cluster.generate(random_ids(rng, 9), max_tokens=4)):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await replies_of(call)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert reason in (ended.value.details() or "")
        async with httpx.AsyncClient(base_url=router.cluster.http, timeout=DEADLINE_S) as http:
            for path in ("/health", "/ready"):
                reply = await http.get(path)
                assert reply.status_code == 503 and reason in reply.text
        assert await router.health() == NOT_SERVING


@pytest.mark.parametrize("name", ANEW)
async def test_a_work_that_is_started_anew_works_again(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(7)
    async with routed(tmp_path) as router:
        router.rank.answer = answer
        owner = router.cluster.owner
        work = await work_of(owner, name)
        assert work.on_failure is OnFailure.ANEW
        for starts in (2, 3):
            await fail(work)
            await until(lambda: work.starts == starts)  # noqa: B023
            # A fault inside a call that begins would be one of gRPC's, whose futures it has to set.
            await router.cluster.until(lambda workers: bool(workers["d0"]["ready"]))
        assert len(failures(caplog, name)) == 2
        assert "failure 2 of this process" in failures(caplog, name)[1]
        replies = await replies_of(router.cluster.generate(random_ids(rng, 9), max_tokens=2))
        assert not replies[-1].finished.HasField("error")
        async with httpx.AsyncClient(base_url=router.cluster.http, timeout=DEADLINE_S) as http:
            assert (await http.get("/ready")).status_code == 200
        await until_health(router, SERVING)
        assert not owner.reason


async def test_the_health_over_grpc_follows_once_its_watch_runs_again(tmp_path: Path) -> None:
    async with routed(tmp_path) as router:
        await until_health(router, SERVING)
        work = await work_of(router.cluster.owner, "gRPC health")
        await fail(work)
        await until(lambda: work.starts == 2)
        router.rank.unregister()
        await until_health(router, NOT_SERVING)


async def test_a_session_that_fails_gives_its_requests_to_the_next_one(tmp_path: Path) -> None:
    rng = random.Random(7)
    async with routed(tmp_path) as router:
        running = router.cluster.generate(random_ids(rng, 9), max_tokens=2)
        assert (await within(router.rank.starts.get())).attempt == 1
        router.rank.answer = answer
        await fail(await work_of(router.cluster.owner, "session with d0"))
        replies = await replies_of(running)
        assert not replies[-1].finished.HasField("error")
        assert (await within(router.rank.starts.get())).attempt == 2


def failures(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    return [line for line in found if line.startswith(name)]


async def until_health(router: Routed, expected: int) -> None:
    async def is_so() -> bool:
        return await router.health() == expected

    await until_answered(is_so)
