"""A cluster on a Ray of two hosts, of which one is lost."""

import asyncio
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from deploy.some_ray import DEADLINE_S, some_ray
from deploy.tiny_worker import GRID, prompt, served
from kit.polling import until_asked

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import complete
from baton.core.role import Role
from baton.deploy.cluster import ray_start
from baton.deploy.cluster.actor_processes import processes_of
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.member_watch import MemberWatch
from baton.deploy.cluster.ray_nodes import living_nodes
from baton.deploy.errors import NotRunning, StartError
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.cluster

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
LONG = 600


def workers(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The workers that are ready, by their ids."""
    found = cluster.router.server_info()["workers"]
    return {worker["worker_id"]: worker for worker in found if worker["ready"]}


def host_of(worker: dict[str, Any]) -> str:
    return str(worker["address"]).rpartition(":")[0]


async def expected(tiny: Path, prompts: list[list[int]], new: int) -> list[list[int]]:
    async with served(tiny) as alone:
        return [(await alone.generate(ids, new))["output_ids"] for ids in prompts]


async def ask(
    cluster: Cluster, ids: list[int], new: int, at: str | None = None, **more: object
) -> list[int]:
    """Return the tokens of an answer. at: a router's URL; None: the first one's."""
    body = {"prompt": ids, "temperature": 0, "max_tokens": new, "ignore_eos": True,
            "return_token_ids": True} | more  # fmt: skip
    return list((await complete(at or cluster.http_url, body, DEADLINE_S)).token_ids)


def router_hosts(cluster: Cluster) -> list[str | None]:
    return [urlsplit(url).hostname for url in cluster.routers.http_urls]


def reaches_all(cluster: Cluster, number: int) -> bool:
    """Return whether one router can place requests on all workers that there are."""
    try:
        found = cluster.routers.clients[number].server_info(2.0)["workers"]
    except NotRunning:
        return False
    return {each["worker_id"] for each in found if each["ready"]} == set(cluster.workers)


def placements(cluster: Cluster, rank: int) -> float:
    name = "baton_router_placements_total"
    return total([cluster.router.metrics()], name, worker=f"decode-{rank}")


def cluster_config(tiny: Path, address: str) -> ClusterConfig:
    engine = EngineConfig(tiny, page_size=GRID, max_running=8, memory_bytes=64 << 20)
    router = RouterConfig(tiny, host="0.0.0.0")
    return ClusterConfig(engine, router, routers=2, decode_dp=2, threads=1, ray_address=address)


async def test_router_and_workers_of_a_lost_host_go_on_elsewhere(
    tiny: Path, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(rng, rng.randrange(20, 200)) for _ in range(8)]
    right = await expected(tiny, prompts, LONG)
    with some_ray(tmp_path, HEAD, "--num-cpus", "5") as ray:
        for name, value in ray.env.items():
            monkeypatch.setenv(name, value)
        ray.join(OTHER, "--num-cpus", "2")
        ray_start.connect(ray_start.RayConfig(ray.address))
        await until_asked(lambda: len(living_nodes()) == 2)
        ray_start.leave()
        with Cluster(cluster_config(tiny, ray.address)) as cluster:
            before = workers(cluster)
            assert {host_of(before[f"decode-{n}"]) for n in range(2)} == {HEAD, OTHER}
            assert router_hosts(cluster) == [HEAD, OTHER]
            second = cluster.routers.http_urls[1]
            assert await ask(cluster, prompts[0], 8, at=second) == right[0][:8]
            for rank in range(2):  # whichever host it is on
                had = placements(cluster, rank)
                assert await ask(cluster, prompts[rank], 8, routed_dp_rank=rank) == right[rank][:8]
                assert placements(cluster, rank) == had + 1
            streams = [asyncio.create_task(ask(cluster, ids, LONG)) for ids in prompts]
            await until_asked(
                lambda: placements(cluster, 0) + placements(cluster, 1) >= 2 + len(streams)
            )
            await asyncio.to_thread(ray.kill, OTHER)
            assert await asyncio.gather(*streams) == right
            lost = {name for name, worker in before.items() if host_of(worker) == OTHER}
            await until_asked(
                lambda: returned(workers(cluster), before, lost),
                lambda: (processes_of(cluster.handles), living_nodes(), workers(cluster).keys()),
            )
            assert await ask(cluster, prompts[0], 8) == right[0][:8]
            await until_asked(lambda: reaches_all(cluster, 1), lambda: cluster.routers.http_urls)
            assert router_hosts(cluster) == [HEAD, HEAD]
            moved = cluster.routers.http_urls[1]
            assert moved != second
            assert await ask(cluster, prompts[1], 8, at=moved) == right[1][:8]
            with pytest.raises(
                StartError, match=rf"decode-2 asks for 1 CPU, .* node {HEAD} has 5 CPU, 0 free"
            ):
                await asyncio.to_thread(cluster.scale, Role.DECODE, 4, 1.0)
            assert workers(cluster).keys() == before.keys()
            ray.join(OTHER, "--num-cpus", "1")  # as its operator does, once it is there again
            await until_asked(lambda: len(living_nodes()) == 2)
            await asyncio.to_thread(cluster.scale, Role.DECODE, 3, 1.0)
            assert host_of(workers(cluster)["decode-2"]) == OTHER
            assert await ask(cluster, prompts[0], 8, routed_dp_rank=2) == right[0][:8]
            assert await ask(cluster, prompts[0], 8, at=moved, routed_dp_rank=2) == right[0][:8]
            await asyncio.to_thread(ray.kill, OTHER)  # nowhere else is a CPU free
            watch = MemberWatch(cluster)
            await until_asked(
                lambda: "asks for 1 CPU" in str(watch.describe()["decode-2"]["lacks"]),
                watch.describe,
            )
            told = watch.describe()
            assert f"node {HEAD} has 5 CPU, 0 free" in str(told["decode-2"]["lacks"])
            assert told["decode-2"]["host_lost"] and told["decode-2"]["host"] == OTHER
            assert [name for name, view in told.items() if view["lacks"]] == ["decode-2"]


def returned(
    now: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]], lost: set[str]
) -> bool:
    return now.keys() == before.keys() and all(
        host_of(now[name]) == HEAD and now[name]["incarnation"] > before[name]["incarnation"]
        for name in lost
    )
