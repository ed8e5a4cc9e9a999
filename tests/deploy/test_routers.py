"""A cluster of three routers: one is killed under load, and the others' streams do not notice."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence

import httpx
import pytest
from e2e.books import settled_findings
from kit.polling import until_asked
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import RequestFailed, complete
from baton.core.role import Role
from baton.core.sampling_params import SamplingParams
from baton.deploy.client.router_client import RouterClient
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.errors import NotRunning
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.cluster

ROUTERS = 3
RUNNING = 16
DEADLINE_S = 180.0
ANSWER = 400  # tokens: long enough that a router is killed half-way


@pytest.fixture(scope="module")
def engine_config(oracle: Oracle) -> EngineConfig:
    model = oracle.checkpoint("granite_dense_nope")
    return EngineConfig(
        model, page_size=16, chunked_prefill_size=64, max_running=RUNNING, memory_bytes=128 << 20
    )


@pytest.fixture(scope="module")
def cluster(engine_config: EngineConfig) -> Iterator[Cluster]:
    config = ClusterConfig(
        engine_config,
        RouterConfig(engine_config.model, http_port=0),
        routers=ROUTERS,
        decode_dp=2,
        channel="grpc",
    )
    with Cluster(config) as cluster:
        yield cluster


def placed(router: RouterClient) -> int:
    return sum(int(worker["placed"]) for worker in router.server_info()["workers"])


def asked(url: str, prompts: Sequence[Sequence[int]]) -> list["asyncio.Task[list[int]]"]:
    async def one(prompt: Sequence[int]) -> list[int]:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": ANSWER, "ignore_eos": True,
                "return_token_ids": True}  # fmt: skip
        return list((await complete(url, body, DEADLINE_S)).token_ids)

    return [asyncio.create_task(one(prompt)) for prompt in prompts]


def expected(engine_config: EngineConfig, prompts: list[list[int]]) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    outputs = Engine.load(engine_config).generate(prompts, greedy)
    return [list(output.token_ids) for output in outputs]


async def test_one_of_three_routers_is_killed_under_load(
    cluster: Cluster, engine_config: EngineConfig
) -> None:
    rng = random.Random(random.randrange(2**31))
    prompts = [[rng.randrange(3, 320) for _ in range(30)] for _ in range(4 * ROUTERS)]
    right = expected(engine_config, prompts)
    share = len(prompts) // ROUTERS
    streams = [
        asked(url, prompts[number * share : (number + 1) * share])
        for number, url in enumerate(cluster.routers.http_urls)
    ]
    await until_asked(lambda: all(placed(router) >= share for router in cluster.routers.clients))
    ids = [router.server_info()["router"]["router_id"] for router in cluster.routers.clients]
    assert [each.split("/")[0] for each in ids] == [f"router-{i}" for i in range(ROUTERS)]
    os.kill(cluster.routers.pids["router-1"], signal.SIGKILL)
    lost = await asyncio.gather(*streams[1], return_exceptions=True)
    whole = [each for each in lost if isinstance(each, list) and len(each) >= ANSWER]
    others = [each for each in lost if not isinstance(each, RequestFailed | list)]
    assert not whole and not others
    for number in (0, 2):
        found = await asyncio.gather(*streams[number])
        assert found == right[number * share : (number + 1) * share]
    pages = [cluster.routers.clients[number].metrics() for number in (0, 2)]
    assert total(pages, "baton_router_retries_total") == 0
    assert total(pages, "baton_router_worker_losses_total") == 0
    assert not await asyncio.wait_for(settled_findings(cluster), DEADLINE_S)
    await until_asked(lambda: _serves(cluster.routers.clients[1], cluster))
    assert await asyncio.gather(*asked(cluster.routers.http_urls[1], prompts[:2])) == right[:2]


async def test_an_idle_router_leaves_its_part_to_a_busy_one(cluster: Cluster) -> None:
    await until_asked(lambda: all(_serves(router, cluster) for router in cluster.routers.clients))
    first, second = cluster.routers.clients[:2]
    streams = asked(cluster.routers.http_urls[0], [[9, 8, 7]] * 60)
    assert RUNNING - 1 <= (await seen_most(first, streams, RUNNING - 1))
    more = asked(cluster.routers.http_urls[1], [[6, 5, 4]] * 60)
    assert RUNNING // 3 <= (await seen_most(second, more, RUNNING // 3))
    answers = await asyncio.wait_for(asyncio.gather(*streams, *more), DEADLINE_S)
    assert {len(answer) for answer in answers} == {ANSWER}
    assert len({tuple(answer) for answer in answers}) == 2


async def seen_most(
    router: RouterClient, streams: "list[asyncio.Task[list[int]]]", enough: int
) -> int:
    """Return the most requests of a router that were on each rank at once, while `streams` run and
    until it has had `enough`."""
    most = 0
    async with asyncio.timeout(DEADLINE_S):
        while most < enough and not all(stream.done() for stream in streams):
            most = max(most, min(await asyncio.to_thread(on_ranks, router)))
            await asyncio.sleep(0.02)  # between two measurements
    return most


def on_ranks(router: RouterClient) -> list[int]:
    """Return the requests of a router on each rank."""
    workers = router.server_info()["workers"]
    return [int(worker["placed"]) for worker in workers if worker["role"] == "decode"]


async def test_every_router_serves_without_a_rank_that_has_left(cluster: Cluster) -> None:
    await until_asked(lambda: all(_serves(router, cluster) for router in cluster.routers.clients))
    await asyncio.to_thread(cluster.scale, Role.DECODE, 3, 5.0)
    assert all(_serves(router, cluster) for router in cluster.routers.clients)
    await asyncio.to_thread(cluster.scale, Role.DECODE, 2, 5.0)
    assert all(_serves(router, cluster) for router in cluster.routers.clients)
    body = {"prompt": [5, 6, 7], "max_tokens": 2, "routed_dp_rank": 2}
    for url in cluster.routers.http_urls:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            assert (await http.post("/v1/completions", json=body)).status_code == 200


def _serves(router: RouterClient, cluster: Cluster) -> bool:
    try:
        workers = router.server_info()["workers"]
    except NotRunning:
        return False
    return {w["worker_id"] for w in workers if w["ready"]} == set(cluster.workers)
