"""Every work that runs beside its maker in a worker that stands alone, made to fail."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from broken_works import MadeToFail, fail, work_of
from deploy.tiny_worker import DEADLINE_S, Client, make_worker, prompt
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.polling import until

from baton.core import supervised
from baton.core.errors import StoppedError
from baton.core.supervised import OnFailure
from baton.standalone.worker import StandaloneWorker

ENDS = ("transfers",)
ANEW = ("HTTP server", "deadlines of HTTP clients", "reporter", "surplus gRPC connections")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_S", 0.01)


@asynccontextmanager
async def alone(folder: Path) -> AsyncIterator[tuple[StandaloneWorker, Client]]:
    async with make_worker(folder) as worker:
        url = f"http://{worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            yield worker, Client(http, worker.addresses.grpc)


async def health(client: Client) -> set[int]:
    """Return the health over gRPC of the server and of its service."""
    async with grpc.aio.insecure_channel(client.grpc_address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        names = ("", "baton.v1.Inference")
        asked = [check(health_pb2.HealthCheckRequest(service=name)) for name in names]
        return {(await reply).status for reply in asked}


async def test_the_lists_here_have_every_work(tiny: Path) -> None:
    async with alone(tiny) as (worker, _):
        assert {work.name for work in worker._owner.works} == {*ENDS, *ANEW}


async def test_a_worker_ends_that_has_lost_what_it_cannot_do_without(
    tiny: Path,
    rng: random.Random,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with alone(tiny) as (worker, client):
        assert await health(client) == {SERVING}
        sampling = {"max_new_tokens": 4000, "ignore_eos": True}
        body = {"input_ids": prompt(rng, 20), "sampling_params": sampling}
        running = asyncio.create_task(client.http.post("/generate", json=body))
        await client.running(1)

        def broken(polled: object) -> None:
            raise MadeToFail("as the test wants it")

        monkeypatch.setattr(worker._context.poller, "_poll", broken)
        worker._context.poller.call(lambda: None)  # it looks
        reason = "transfers ended: MadeToFail: as the test wants it"
        with pytest.raises(StoppedError, match=reason):
            async with asyncio.timeout(DEADLINE_S):
                await worker.watch()
        critical = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
        assert critical == [f"{reason}; this process ends"]
        for reply in (
            await running,
            await client.http.post("/generate", json=body),
            await client.http.get("/health"),
            await client.http.get("/ready"),
        ):
            assert reply.status_code == 503 and reason in reply.text
        assert await health(client) == {NOT_SERVING}


@pytest.mark.parametrize("name", ANEW)
async def test_a_work_that_is_started_anew_works_again(
    name: str, tiny: Path, rng: random.Random
) -> None:
    async with alone(tiny) as (worker, client):
        work = await work_of(worker._owner, name)
        assert work.on_failure is OnFailure.ANEW
        for starts in (2, 3):
            await fail(work)

            def is_started(starts: int = starts) -> bool:
                return work.starts >= starts

            await until(is_started)
        assert len((await client.generate(prompt(rng, 20)))["output_ids"]) == 4
        assert (await client.http.get("/health")).status_code == 200
        assert await health(client) == {SERVING} and not worker._owner.reason
