"""Every alert fires when its fault is made in a real cluster, and ends with the fault."""

import asyncio
import contextlib
import datetime as dt
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dashboards import DASHBOARDS
from https_certificates import DAY
from monitoring.served import DEADLINE_S, KEY, Served, drawn, pulses, served

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

FAST, FASTEST, SLOW = 120.0, 600.0, 40.0  # speeds of the rules' time


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def rng() -> random.Random:
    return random.Random(random.randrange(2**31))


async def back(cluster: Served) -> None:
    """Wait until every worker is ready again."""
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(cluster.whole):
            await asyncio.sleep(0.2)


async def test_every_query_has_data_also_those_of_api_keys(
    cluster: Served, tmp_path: Path, rng: random.Random
) -> None:
    queries = [q.expr for spec in DASHBOARDS for panel in spec.panels for q in panel.queries]
    known = [drawn(rng, 300) for _ in range(3)]
    with cluster.watched(tmp_path, FAST) as server:
        missing = set(queries)
        assert cluster.address.trust is not None
        authorities = cluster.address.trust()

        def all_there() -> bool:
            refused = httpx.post(
                f"{cluster.address.url}/v1/completions",
                json={"prompt": [5, 6], "n": 2, "max_tokens": 1},
                headers={"Authorization": f"Bearer {KEY}"},
                verify=authorities,
            )
            assert refused.status_code in (403, 429), refused.text
            missing.difference_update([expr for expr in missing if server.query(expr)])
            return not missing

        async with cluster.load(3, lambda: rng.choice(known), 40):
            async with cluster.load(1, lambda: drawn(rng, 200), 20):
                with contextlib.suppress(AssertionError):
                    await server.until(all_there, 60.0, "data")
        # Only a conversation's second turn fetches a prefix: tests/e2e/test_prometheus.py has one.
        assert {expr for expr in missing if "prefix_fetches" not in expr} == set()


async def test_a_certificate_that_ends_soon(cluster: Served, tmp_path: Path) -> None:
    with cluster.watched(tmp_path, FAST) as server:
        await server.until_firing("BatonCertificateNearEnd")
        cluster.authority.issue(cluster.folder, ends=25 * DAY)
        await server.until_over("BatonCertificateNearEnd")
        assert server.value("min(baton_router_certificate_expiry_seconds)") > (
            24 * dt.timedelta(days=1).total_seconds()
        )


async def test_a_full_queue_and_late_first_tokens(
    cluster: Served, tmp_path: Path, rng: random.Random
) -> None:
    with cluster.watched(tmp_path, FAST) as server:
        async with cluster.load(2, lambda: drawn(rng, 30), 10):
            await server.until_over("BatonQueueGrowing", "BatonTtftSlow", "BatonItlSlow")
            async with cluster.load(80, lambda: drawn(rng, 30), 150):
                await server.until_firing("BatonQueueGrowing", "BatonTtftSlow")
            await server.until_over("BatonQueueGrowing", "BatonTtftSlow")


async def test_late_tokens(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    with cluster.watched(tmp_path, FAST) as server:
        async with cluster.load(2, lambda: drawn(rng, 30), 100):
            await server.until_over("BatonItlSlow")
            async with pulses(cluster.pids("decode"), 0.3, 0.03):
                await server.until_firing("BatonItlSlow")
            await server.until_over("BatonItlSlow")


async def test_tokens_that_are_late_for_long(
    cluster: Served, tmp_path: Path, rng: random.Random
) -> None:
    names = "BatonTtftDrifting", "BatonItlDrifting"
    with cluster.watched(tmp_path, FASTEST) as server:
        async with cluster.load(2, lambda: drawn(rng, 30), 60):
            async with cluster.load(60, lambda: drawn(rng, 30), 100):
                async with pulses(cluster.pids("decode"), 0.3, 0.1):
                    await server.until_firing(*names)
            await server.until_over(*names)


async def test_a_hit_rate_that_falls(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    known = [drawn(rng, 300) for _ in range(4)]
    with cluster.watched(tmp_path, FAST) as server:
        async with cluster.load(2, lambda: rng.choice(known), 20):
            hits = "job:baton_prefix_hit:ratio_rate6h offset 20s > 0.3"
            await server.until(lambda: bool(server.query(hits)), DEADLINE_S, "hits")
            assert "BatonHitRateFalling" not in server.firing()
        async with cluster.load(2, lambda: drawn(rng, 300), 20):
            await server.until_firing("BatonHitRateFalling")
        async with cluster.load(2, lambda: rng.choice(known), 20):
            await server.until_over("BatonHitRateFalling")


async def test_killed_workers(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    names = "BatonWorkerLost", "BatonNoWorker"
    with cluster.watched(tmp_path, FAST) as server:
        await server.until(lambda: bool(server.query("baton_router_workers")), DEADLINE_S, "data")
        assert not server.firing() & set(names)
        for pid in cluster.pids("prefill"):
            os.kill(pid, signal.SIGKILL)
        await server.until_firing(*names)
        await back(cluster)
        await server.until_over(*names)


async def test_a_killed_router(cluster: Served, tmp_path: Path) -> None:
    with cluster.watched(tmp_path, FAST) as server:
        up = 'up{baton_role="router"} == 1'
        await server.until(lambda: bool(server.query(up)), DEADLINE_S, "the first scrape")
        os.kill(cluster.router_pid(), signal.SIGKILL)
        await server.until_firing("BatonTargetDown")
        await back(cluster)
        await server.until_over("BatonTargetDown")


async def test_transfers_that_fail(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    """Prefill workers are killed one after the other, for as long as it takes."""

    async def kill_in_turn() -> None:
        while True:
            for pid in await asyncio.to_thread(cluster.pids, "prefill"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(2.0)  # others come back meanwhile

    with cluster.watched(tmp_path, SLOW) as server:
        async with cluster.load(12, lambda: drawn(rng, 1500), 8):
            await asyncio.sleep(2.0)  # requests are under way
            killing = asyncio.create_task(kill_in_turn())
            try:
                await server.until_firing("BatonTransfersFailing", deadline_s=DEADLINE_S)
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
            await back(cluster)
            await server.until_over("BatonTransfersFailing")


async def test_transfers_that_are_slow(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    with cluster.watched(tmp_path, FAST) as server:
        async with cluster.load(6, lambda: drawn(rng, 600), 4):
            async with pulses(cluster.pids("prefill"), 0.9, 0.04):
                await server.until_firing("BatonTransfersSlow", deadline_s=DEADLINE_S)
            await server.until_over("BatonTransfersSlow")


async def test_memory_in_quarantine(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    """Prefill workers are stopped for longer than a lease while they write."""
    stopped = cluster.pids("prefill")
    with cluster.watched(tmp_path, FAST) as server:
        async with cluster.load(12, lambda: drawn(rng, 2500), 2):
            await asyncio.sleep(2.0)  # requests are under way
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                await server.until_firing("BatonQuarantineGrowing")
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
        await server.until_over("BatonQuarantineGrowing")
    await back(cluster)


async def test_memory_near_its_plan(cluster: Served, tmp_path: Path, rng: random.Random) -> None:
    """Eight answers of a rank grow beyond its pages, so that it preempts some again and again."""
    with cluster.watched(tmp_path, FAST / 2) as server:
        await server.until(lambda: bool(server.query("baton_worker_pages")), DEADLINE_S, "data")
        assert "BatonMemoryNearPlan" not in server.firing()
        async with cluster.load(20, lambda: drawn(rng, 700), 3300):
            await server.until_firing("BatonMemoryNearPlan", deadline_s=DEADLINE_S)
        await server.until_over("BatonMemoryNearPlan")
