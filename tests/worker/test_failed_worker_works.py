"""Every work that runs beside its maker in a prefill or a decode worker, made to fail."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from broken_works import MadeToFail, fail, work_of
from certificates import operator
from engine.engines import greedy
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.polling import until
from worker.cluster import (
    DEADLINE_S,
    Answer,
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)
from worker.fake_router import FakeRouter
from worker.fake_router import serving as serving_router

from baton.core import supervised
from baton.core.supervised import OnFailure
from baton.proto import common_pb2
from baton.rpc.channel_options import OPTIONS
from baton.transfer.handoff import HandoffState

ENDS = {
    "prefill": ("transfers",),
    "decode": ("grants", "quarantine", "transfers"),
}
"""The works that a worker cannot do without, by its role."""
ANEW = ("certificates", "registration with", "reporter")
"""Those that start again."""
TELLS = {"prefill": ("hand-off",), "decode": ("link to p0",)}
"""Those whose failure reaches the request or the peer that they serve."""
SERVICES = {"prefill": "baton.v1.Handoff", "decode": "baton.v1.Rank"}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.01)


@dataclass
class Pair:
    """A prefill and a decode worker, and a request whose hand-off is under way between them."""

    prefill: TestWorker
    decode: TestWorker
    client: RouterClient
    prompt: tuple[int, ...]
    under_way: Answer

    def worker(self, role: str) -> TestWorker:
        return self.prefill if role == "prefill" else self.decode

    async def ask(self) -> Answer:
        _, answer = await self.client.start(self.prompt, greedy(3), [self.prefill])
        return answer


@asynccontextmanager
async def pair(seeded: random.Random) -> AsyncIterator[Pair]:
    router = FakeRouter()
    async with serving_router(router) as address:
        told = {"routers": (address,)}
        prefill, decode = prefill_worker(worker=told), decode_worker(worker=told)
        async with running(prefill, decode), session(decode) as client:
            prompt = tuple(seeded.randrange(3, 50) for _ in range(20))
            prefill.model.gate.allow(0)
            _, answer = await client.start(prompt, greedy(3), [prefill])
            await decode.reached(HandoffState.RESERVED)
            await work_of(prefill.owner, "hand-off")
            await until(lambda: registered(prefill) and registered(decode))
            yield Pair(prefill, decode, client, prompt, answer)


def names(worker: TestWorker) -> set[str]:
    return {work.name for work in worker.owner.works}


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_lists_here_have_every_work(role: str, seeded: random.Random) -> None:
    expected = (*ENDS[role], *ANEW, *TELLS[role])
    async with pair(seeded) as both:
        worker = both.worker(role)
        for name in expected:
            await work_of(worker.owner, name)
        unknown = {name for name in names(worker) if not name.startswith(expected)}
        assert not unknown, "make them fail in these tests, too"


async def break_it(worker: TestWorker, name: str) -> None:
    """Make a work fail at the place where it waits now."""
    work = await work_of(worker.owner, name)
    if work.task is not None:
        await fail(work)
        return
    assert name == "transfers", "no test knows how to make this thread fail"

    def broken(polled: object) -> None:
        raise MadeToFail("as the test wants it")

    worker.context.poller._poll = broken
    worker.context.poller.call(lambda: None)  # it looks


async def health(worker: TestWorker, service: str) -> int:
    async with operator().dial_worker(worker.identity, OPTIONS) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest(service=service)
        status: int = (await check(request, timeout=DEADLINE_S)).status
        return status


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, names in ENDS.items() for name in names]
)
async def test_a_worker_ends_that_has_lost_what_it_cannot_do_without(
    role: str, name: str, seeded: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(seeded) as both:
        worker = both.worker(role)
        for service in ("", SERVICES[role]):
            assert await health(worker, service) == SERVING
        await break_it(worker, name)
        async with asyncio.timeout(DEADLINE_S):
            await worker.owner.ended()
        reason = f"{name} ended: MadeToFail: as the test wants it"
        assert worker.owner.reason == reason
        critical = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
        assert critical == [f"{reason}; this process ends"]
        for service in ("", SERVICES[role]):
            assert await health(worker, service) == NOT_SERVING
        for answer in (both.under_way, await both.ask()):
            finished = await answer.end()
            assert finished.reason == common_pb2.ERROR
            assert finished.error.code == common_pb2.UNAVAILABLE  # another one may continue it
            assert reason in finished.error.message
        both.prefill.model.gate.open()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_ends_whose_role_fails_at_an_event(
    role: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop alone would log it, and the request would wait for what came with it."""

    def broken(batch: object) -> None:
        raise MadeToFail("as the test wants it")

    async with pair(seeded) as both:
        worker = both.worker(role)
        monkeypatch.setattr(worker.runtime._role, "on_batch", broken)
        both.prefill.model.gate.open()
        async with asyncio.timeout(DEADLINE_S):
            await worker.owner.ended()
        reason = "delivery of the engine's events ended: MadeToFail: as the test wants it"
        assert worker.owner.reason == reason
        assert await health(worker, "") == NOT_SERVING
        finished = await both.under_way.end()
        assert finished.reason == common_pb2.ERROR
        assert finished.error.code == common_pb2.UNAVAILABLE


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("name", ANEW)
async def test_a_work_that_is_started_anew_works_again(
    role: str, name: str, seeded: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(seeded) as both:
        worker = both.worker(role)
        work = await work_of(worker.owner, name)
        assert work.on_failure is OnFailure.ANEW
        for starts in (2, 3):
            await fail(work)
            # A fault inside a call that begins would be one of gRPC's, whose futures it has to set.
            await until(lambda: work.starts == starts and registered(worker))  # noqa: B023
        assert len(failures(caplog, name)) == 2
        assert "failure 2 of this process" in failures(caplog, name)[1]
        reports = worker.runtime._reporter._reports
        await until(lambda: worker.runtime._reporter._reports > reports)
        both.prefill.model.gate.open()
        for answer in (both.under_way, await both.ask()):
            assert (await answer.end()).reason == common_pb2.LENGTH
        assert not worker.owner.reason
        assert await health(worker, "") == SERVING


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, names in TELLS.items() for name in names]
)
async def test_the_failure_of_a_requests_own_work_ends_that_request_alone(
    role: str, name: str, seeded: random.Random
) -> None:
    async with pair(seeded) as both:
        await break_it(both.worker(role), name)
        finished = await both.under_way.end()
        assert finished.reason == common_pb2.ERROR
        assert "as the test wants it" in finished.error.message
        both.prefill.model.gate.open()
        assert (await (await both.ask()).end()).reason == common_pb2.LENGTH
        for worker in (both.prefill, both.decode):
            assert not worker.owner.reason
            await worker.clean()


def registered(worker: TestWorker) -> bool:
    return all(each.router_id for each in worker.runtime._registrations)


def failures(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    return [line for line in found if line.startswith(name)]
