"""Tests of the metrics that Prometheus reads from a real cluster."""

import asyncio
import json
import random
import urllib.request

import pytest
from e2e.clients import DEADLINE_S, VOCAB_SIZE, http_greedy, prompts_of
from kit.polling import until_asked
from prometheus_client.parser import text_string_to_metric_families

from baton.bench.cluster.handoff_cpu import handoff_cpu_ms
from baton.bench.cluster.load import Load
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


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as reply:
        text: str = reply.read().decode()
    return text


def _names(page: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(page)}


def _moved(cluster: Cluster, direction: str) -> float:
    pages = map(cluster.router.metrics, cluster.workers)
    return total(pages, f"baton_worker_{direction}_bytes_total")


async def test_every_process_has_its_page(cluster: Cluster, rng: random.Random) -> None:
    await http_greedy(cluster, prompts_of(rng, [20, 30]), 4)
    assert _names(cluster.router.metrics()) >= OF_ROUTER
    for worker_id in cluster.workers:
        assert _names(cluster.router.metrics(worker_id)) >= OF_WORKER


async def test_prometheus_finds_the_router_and_every_worker(cluster: Cluster) -> None:
    """Scrape each target as Prometheus does, by the path and the scheme of its labels."""
    found = {}
    for group in json.loads(_get(f"{cluster.http_url}/prometheus/targets")):
        ((address,), labels) = group["targets"], group["labels"]
        path = labels.get("__metrics_path__", "/metrics")
        names = _names(_get(f"{labels.get('__scheme__', 'http')}://{address}{path}"))
        assert names >= (OF_ROUTER if labels["baton_role"] == "router" else OF_WORKER)
        found[labels.get("baton_worker", "")] = labels["baton_role"]
    assert set(found) == {"", *cluster.workers}
    assert found[""] == "router" and found["prefill-0"] == "prefill"


async def test_what_moves_is_the_state_and_the_kv_to_the_token(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    lengths = [40, 100, 250]
    before = {way: _moved(cluster, way) for way in ("sent", "received")}
    await http_greedy(cluster, prompts_of(rng, lengths), 4)
    needed = sum(handoff_bytes(engine.plan.model_config, length) for length in lengths)
    for way, had in before.items():

        def all_moved(way: str = way, had: float = had) -> float:
            moved = _moved(cluster, way) - had
            return moved if moved >= needed else 0.0

        assert await until_asked(all_moved) <= 1.02 * needed, way  # counted once it is posted


async def test_latencies_and_tokens_are_counted(cluster: Cluster, rng: random.Random) -> None:
    counted = {
        "baton_router_ttft_seconds_count": 3,
        "baton_router_itl_seconds_count": 3 * 7,
        "baton_router_e2e_seconds_count": 3,
    }
    page = [cluster.router.metrics()]
    before = {name: total(page, name) for name in counted}
    output = total(page, "baton_router_tokens_total", kind="output")
    await http_greedy(cluster, prompts_of(rng, [10, 20, 30]), 8)
    page = [cluster.router.metrics()]
    assert {name: total(page, name) - had for name, had in before.items()} == counted
    assert total(page, "baton_router_tokens_total", kind="output") - output == 24


async def test_a_handoffs_processor_time_is_told_for_each_side(
    cluster: Cluster, rng: random.Random
) -> None:
    shape = Load(requests=20, concurrency=4, input_len=32, output_len=4)
    found = await asyncio.to_thread(handoff_cpu_ms, cluster, VOCAB_SIZE, rng, shape)
    assert set(found) == {"cpu_ms_handoff_prefill", "cpu_ms_handoff_decode"}
    assert all(ms > 0 for ms in found.values())
