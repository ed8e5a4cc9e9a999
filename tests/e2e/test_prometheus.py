"""A real Prometheus scrapes the cluster: queries have data, alerts come and go, numbers agree."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest
import yaml
from dashboards import DASHBOARDS
from e2e.clients import DEADLINE_S, http_greedy, prompts_of
from prometheus_server import Prometheus, Sample, prometheus
from write_rules import HERE

from baton.bench.cluster import load
from baton.bench.cluster.stream_client import complete
from baton.deploy.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.cluster,
    # Its ranks verify drafts, of which dashboards tell too.
    pytest.mark.parametrize("running_cluster", ["nixl"], indirect=True, scope="session"),
]

SPEED = 100.0  # ten minutes of a rule are six seconds here
LONG = 900  # tokens of an answer
# What this cluster has not: API keys (that of tests/monitoring/test_alerts_fire.py has), and
# workers with --host-cache-gb and --file-cache.
WITHOUT = "baton_router_key_", "baton_worker_host_", "baton_worker_file"
QUERIES = [q.expr for spec in DASHBOARDS for panel in spec.panels for q in panel.queries]
RECORDED = [
    rule["record"]
    for group in yaml.safe_load((HERE / "prometheus/recording.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.fixture(scope="module")
def server(
    running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    router = running_cluster.http_url.removeprefix("http://")
    with prometheus(tmp_path_factory.mktemp("prometheus"), router, speed=SPEED) as running:
        yield running


@asynccontextmanager
async def busy(cluster: Cluster, rng: random.Random) -> AsyncIterator[None]:
    """Send conversations of two turns, over and over; the second fetches the first one's state."""

    async def talk() -> None:
        while True:
            (prompt,) = prompts_of(rng, [rng.randrange(40, 90)])
            body = {"temperature": 0, "max_tokens": 300, "ignore_eos": True,
                    "return_token_ids": True}  # fmt: skip
            first = await complete(cluster.http_url, body | {"prompt": prompt}, DEADLINE_S)
            again = [*prompt, *first.token_ids, 5, 6, 7]
            second = body | {"prompt": again, "max_tokens": 8}
            await complete(cluster.http_url, second, DEADLINE_S)

    talks = [asyncio.create_task(talk()) for _ in range(3)]
    try:
        yield
    finally:
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def test_every_query_of_dashboards_and_rules_has_data(
    cluster: Cluster, server: Prometheus, rng: random.Random
) -> None:
    expected = [*QUERIES, *RECORDED]
    missing = {expr for expr in expected if not any(name in expr for name in WITHOUT)}

    def all_there() -> bool:
        missing.difference_update([expr for expr in missing if server.query(expr)])
        return not missing

    async with busy(cluster, rng):
        with contextlib.suppress(AssertionError):
            await server.until(all_there, DEADLINE_S, "data")
    assert not missing


async def test_numbers_are_those_of_status_and_of_the_bench(
    cluster: Cluster, server: Prometheus, rng: random.Random
) -> None:
    await _settled(cluster, server)
    counted = {
        name: f"sum({name})"
        for name in ("baton_worker_sent_bytes_total", "baton_worker_received_bytes_total",
                     "baton_router_ttft_seconds_count", "baton_router_itl_seconds_count",
                     "baton_router_ttft_seconds_sum", "baton_router_prefill_placements_total")
    } | {
        kind: f'sum(baton_router_tokens_total{{kind="{kind}"}})' for kind in ("prompt", "output")
    }  # fmt: skip
    before = await _values(server, counted)
    shape = load.Load(requests=6, concurrency=6, input_len=120, output_len=20)
    answers = await asyncio.to_thread(load.play, cluster.address, shape, shape.draw(rng, 320))
    await _settled(cluster, server)
    after = await _values(server, counted)
    more = {name: after[name] - before[name] for name in counted}
    assert (more["prompt"], more["output"]) == (6 * 120, 6 * 20)
    assert more["baton_router_ttft_seconds_count"] == 6
    assert more["baton_router_itl_seconds_count"] == 6 * 19
    assert more["baton_router_prefill_placements_total"] == 6
    assert more["baton_worker_sent_bytes_total"] == more["baton_worker_received_bytes_total"] > 0
    assert 0 < more["baton_router_ttft_seconds_sum"] <= sum(answer.ttft for answer in answers)


async def _values(server: Prometheus, exprs: Mapping[str, str]) -> dict[str, float]:
    """Return the value of each expression, once no scrape is missing."""
    found: dict[str, float] = {}

    def whole() -> bool:
        found.update({name: server.value(expr) for name, expr in exprs.items()})
        return not any(math.isnan(value) for value in found.values())

    await server.until(whole, DEADLINE_S, "a scrape of every process")
    return found


async def _settled(cluster: Cluster, server: Prometheus) -> None:
    """Wait until what Prometheus scraped last is what `baton status` says of an idle cluster."""

    def by_worker(metric: str) -> dict[tuple[str, ...], float]:
        found: list[Sample] = server.query(metric)
        return {
            (s.labels["worker"], *([s.labels["owner"]] if "owner" in s.labels else [])): s.value
            for s in found
        }

    def equal() -> bool:
        info = cluster.router.server_info()
        workers, router = info["workers"], info["router"]
        owned = {
            pool: {(w["worker_id"], o): n for w in workers for o, n in w[pool].items()}
            for pool in ("slots", "pages")
        }
        return (
            router["active"] == server.value("sum(baton_router_requests_active)") == 0
            and router["queued"] == server.value("sum(baton_router_requests_queued)")
            and router["capacity"] == server.value("max(baton_router_requests_capacity)")
            and len(workers) == server.value("sum(baton_router_workers)")
            and all(by_worker(f"baton_worker_{pool}") == owned[pool] for pool in owned)
            and by_worker("baton_worker_requests_running")
            == {(w["worker_id"],): w["running"] for w in workers}
        )

    await server.until(equal, DEADLINE_S, "a scrape that agrees with `baton status`")
    now = time.time()
    await server.until(
        lambda: server.value("min(timestamp(up))") > now, DEADLINE_S, "a scrape of an idle cluster"
    )


async def test_alerts_come_with_a_lost_worker_and_a_full_queue_and_go_with_them(
    cluster: Cluster, server: Prometheus, rng: random.Random
) -> None:
    names = "BatonWorkerLost", "BatonQueueGrowing"
    await server.until_over(*names)
    cluster.kill("decode-1")
    await server.until_firing("BatonWorkerLost")
    waiting = asyncio.create_task(_fill_queue(cluster, rng))
    try:
        await server.until_firing("BatonQueueGrowing")
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await server.until_over(*names)


async def _fill_queue(cluster: Cluster, rng: random.Random) -> None:
    """Keep more requests waiting than run, until cancelled."""

    async def ask_on() -> None:
        while True:
            await http_greedy(cluster, prompts_of(rng, [20]), LONG)

    async with asyncio.TaskGroup() as asking:
        for _ in range(60):
            asking.create_task(ask_on())
