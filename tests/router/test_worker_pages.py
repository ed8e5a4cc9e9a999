"""Metrics of workers at the router: real router, real RPC, workers that the test plays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from certificates import router as credentials_of_router
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, within
from router_neighbours import Cluster

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.supervised import ProcessSupervisor
from baton.router.cluster_view.worker_pages import WorkerPages
from baton.router.cluster_view.worker_table import WorkerTable

SHORT_S = 0.2


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[tuple[Cluster, httpx.AsyncClient]]:
    async with Cluster(tmp_path) as cluster:
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            yield cluster, client


async def test_the_text_is_passed_on_as_it_is(http: tuple[Cluster, httpx.AsyncClient]) -> None:
    cluster, client = http
    worker = FakeWorker("p0")
    worker.page = "no metrics at all, but *café* {\n".encode()
    await cluster.add(worker, FakeRank("d0"))
    for _ in range(2):
        reply = await client.get("/workers/p0/metrics")
        assert reply.status_code == 200 and reply.content == worker.page
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert (await client.get("/server_info")).json()["workers"][1]["metrics_path"] == (
        "/workers/p0/metrics"
    )


async def test_an_unknown_worker_is_answered_with_those_that_are_there(
    http: tuple[Cluster, httpx.AsyncClient],
) -> None:
    cluster, client = http
    reply = await client.get("/workers/p0/metrics")
    assert reply.status_code == 404 and "registered: none" in reply.json()["error"]["message"]
    await cluster.add(FakeWorker("p0"), FakeRank("d0"))
    reply = await client.get("/workers/p1/metrics")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == (
        "no worker 'p1' is registered here; registered: d0, p0"
    )


async def test_a_worker_that_is_gone_is_no_longer_asked(
    http: tuple[Cluster, httpx.AsyncClient],
) -> None:
    cluster, client = http
    worker = FakeWorker("p0")
    await cluster.add(worker)
    assert (await client.get("/workers/p0/metrics")).status_code == 200
    worker.unregister()
    await cluster.until(lambda workers: "p0" not in workers)
    assert (await client.get("/workers/p0/metrics")).status_code == 404


async def test_a_worker_that_does_not_answer_holds_up_nobody_and_is_named() -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    pages = WorkerPages(table, credentials_of_router(), ProcessSupervisor(), SHORT_S)
    async with FakeWorker("p0") as silent, FakeWorker("p1") as other:
        for each in (silent, other):
            table.register(each.hello)
        silent.page_given.clear()
        asked = asyncio.create_task(pages.read("p0"))
        assert await within(pages.read("p1")) == other.page
        with pytest.raises(ApiError, match=r"p0 did not send .* no answer within 0\.2 s") as late:
            await within(asked)
        assert late.value.code is ErrorCode.UNAVAILABLE and late.value.retry_after_s
    with pytest.raises(ApiError, match="p1 did not send") as gone:
        await within(pages.read("p1"))
    assert gone.value.code is ErrorCode.UNAVAILABLE
    await pages.close()


async def test_a_connection_is_kept_while_its_worker_is_registered() -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    pages = WorkerPages(table, credentials_of_router(), ProcessSupervisor())
    async with FakeWorker("p0") as worker:
        registered = table.register(worker.hello)
        await within(pages.read("p0"))
        first = pages._peers._open["p0"]
        await within(pages.read("p0"))
        assert pages._peers._open == {"p0": first}
        table.remove(registered, "it left")
        async with asyncio.timeout(DEADLINE_S):
            while pages._peers._open or pages._closing:
                await asyncio.sleep(0)
    await pages.close()
