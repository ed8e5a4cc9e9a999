"""The only router of a cluster is restarted, or dies, and no client is refused meanwhile."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from deploy.several_routers import DEADLINE_S, running
from kit.polling import until

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.messages.start_progress import Silent
from baton.engine.settings.config import EngineConfig
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.cluster

ASK = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


@pytest.fixture(scope="module")
def cluster(tiny: Path) -> Iterator[Cluster]:
    engine = EngineConfig(tiny, page_size=16, max_running=16, memory_bytes=64 << 20)
    with running(engine, routers=1, prefill=1, decode_dp=1) as cluster:
        yield cluster


async def _ask_until(done: asyncio.Event, url: str, keep: bool, codes: list[int]) -> None:
    """Ask again and again; `keep`: on one connection for as long as the router keeps it."""
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
        while not done.is_set():
            headers = {} if keep else {"connection": "close"}
            codes.append((await client.post("/generate", json=ASK, headers=headers)).status_code)


async def test_a_restart_refuses_nobody(cluster: Cluster) -> None:
    done, codes = asyncio.Event(), list[int]()
    before = dict(cluster.routers.pids)
    url = cluster.http_url
    asking = [asyncio.create_task(_ask_until(done, url, i % 2 == 0, codes)) for i in range(8)]
    await until(lambda: len(codes) >= 20)
    roles = (ProcessRole.ROUTER,)
    assert await asyncio.to_thread(cluster.rolling.restart, roles, 30.0, Silent()) == ["router-0"]
    done.set()
    await asyncio.wait_for(asyncio.gather(*asking), DEADLINE_S)
    assert set(codes) == {200}
    assert cluster.routers.pids != before


async def test_who_comes_while_a_killed_router_is_away_waits_for_it(cluster: Cluster) -> None:
    os.kill(cluster.routers.pids["router-0"], signal.SIGKILL)
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as client:
        replies = await asyncio.gather(*(client.post("/generate", json=ASK) for _ in range(20)))
    assert {reply.status_code for reply in replies} == {200}
