"""Tests of the metrics that Prometheus reads from a real cluster."""

import asyncio
import json
import random
import urllib.request
from collections.abc import Iterable

import pytest
from e2e.clients import DEADLINE_S, http_greedy, prompts_of
from prometheus_client.parser import text_string_to_metric_families

from baton.bench.cluster.needed import handoff_bytes
from baton.bench.cluster.scrape import total
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

OF_ROUTER = {
    "baton_router_requests", "baton_router_ttft_seconds", "baton_router_ttft_part_seconds",
    "baton_router_second_token_part_seconds", "baton_router_itl_seconds",
    "baton_router_e2e_seconds", "baton_router_tokens", "baton_router_workers",
    "baton_router_requests_active",
}  # fmt: skip
OF_WORKER = {
    "baton_worker_requests", "baton_worker_tokens", "baton_worker_sent_bytes",
    "baton_worker_received_bytes",
    "baton_worker_memory_used_bytes", "baton_worker_slots", "baton_worker_pages",
    "baton_worker_step_seconds", "baton_worker_requests_running", "baton_worker_requests_waiting",
}  # fmt: skip


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as reply:
        text: str = reply.read().decode()
    return text


def _names(address: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(_page(address))}


def _worker_addresses(cluster: Cluster, role: str | None = None) -> list[str]:
    workers = cluster.router.server_info()["workers"]
    return [w["metrics_address"] for w in workers if role in (None, w["role"])]


def _moved(addresses: Iterable[str], direction: str) -> float:
    return total(addresses, f"baton_worker_{direction}_bytes_total")


async def test_every_process_has_its_page(cluster: Cluster, rng: random.Random) -> None:
    await http_greedy(cluster, prompts_of(rng, [20, 30]), 4)
    router = cluster.http_url.removeprefix("http://")
    assert _names(router) >= OF_ROUTER
    for address in _worker_addresses(cluster):
        assert _names(address) >= OF_WORKER


async def test_prometheus_finds_the_router_and_every_worker(cluster: Cluster) -> None:
    url = f"{cluster.http_url}/prometheus/targets"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as reply:
        groups = json.load(reply)
    router = cluster.http_url.removeprefix("http://")
    found = {group["targets"][0]: group["labels"] for group in groups}
    assert found.pop(router)["baton_role"] == "router"
    assert _names(router) >= OF_ROUTER
    assert set(found) == set(_worker_addresses(cluster))
    assert {labels["baton_worker"] for labels in found.values()} == set(cluster.workers)


async def test_what_moves_is_the_state_and_the_kv_to_the_token(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    lengths = [40, 100, 250]
    everyone = _worker_addresses(cluster)
    before = {way: _moved(everyone, way) for way in ("sent", "received")}
    await http_greedy(cluster, prompts_of(rng, lengths), 4)
    needed = sum(handoff_bytes(engine.model_config, length) for length in lengths)
    for way, had in before.items():
        async with asyncio.timeout(DEADLINE_S):
            while (moved := _moved(everyone, way) - had) < needed:  # counted once it is posted
                await asyncio.sleep(0.02)
        assert moved <= 1.02 * needed, way


async def test_latencies_and_tokens_are_counted(cluster: Cluster, rng: random.Random) -> None:
    router = [cluster.http_url.removeprefix("http://")]
    counted = {
        "baton_router_ttft_seconds_count": 3,
        "baton_router_itl_seconds_count": 3 * 7,
        "baton_router_e2e_seconds_count": 3,
    }
    before = {name: total(router, name) for name in counted}
    output = total(router, "baton_router_tokens_total", kind="output")
    await http_greedy(cluster, prompts_of(rng, [10, 20, 30]), 8)
    assert {name: total(router, name) - had for name, had in before.items()} == counted
    assert total(router, "baton_router_tokens_total", kind="output") - output == 24
