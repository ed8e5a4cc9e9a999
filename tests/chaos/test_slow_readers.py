"""Clients that do not read answers larger than all socket buffers: others go on, and the router's
memory is bounded."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from oracle.reference import Oracle

from baton.api.access.client_limits import ClientLimits
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

READERS = 4
CHOICES = 4
TOKENS = 900
TOP = 100  # alternatives for each token: some 2 MB a choice; Linux buffers 4 MiB of a connection
WRITE_S = 4.0
ANSWER_BYTES = 8 << 20  # that the router may hold of a choice: tokens, scores and their text
DEADLINE_S = 120.0
BODY: dict[str, Any] = {"prompt": "hello", "temperature": 0, "ignore_eos": True}
SLOW = BODY | {"max_tokens": TOKENS, "logprobs": TOP, "n": CHOICES, "stream": True}


@pytest.fixture(scope="module")
def cluster(oracle: Oracle) -> Iterator[Cluster]:
    engine = EngineConfig(
        oracle.checkpoint("granite_dense_nope"),
        page_size=16,
        max_running=2 * READERS * CHOICES,
        memory_bytes=512 << 20,
    )
    router = RouterConfig(Path(), limits=ClientLimits(write_s=WRITE_S))
    with Cluster(ClusterConfig(engine, router)) as made:
        yield made


def router() -> psutil.Process:
    """Return the process of the cluster's router."""
    (found,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if "RouterHost" in " ".join(process.cmdline())
    )
    return found


async def unread(cluster: Cluster) -> socket.socket:
    """Ask for a long answer and do not read it."""
    host, port = cluster.http_url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    body = json.dumps(SLOW).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    await loop.sock_sendall(
        client, head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    )
    return client


async def cut_off(http: httpx.AsyncClient) -> int:
    """Return the number of slow readers whose connections were closed."""
    page = (await http.get("/metrics")).text
    lines = [line for line in page.splitlines() if 'reason="slow_reader"' in line]
    return int(float(lines[0].rpartition(" ")[2])) if lines else 0


async def leave_unread(cluster: Cluster, http: httpx.AsyncClient, expected: list[str]) -> int:
    """Ask for answers that nobody reads, until their connections are closed. Return the most memory
    of the router meanwhile, in bytes."""
    process, most = router(), 0
    before = await cut_off(http)
    clients = [await unread(cluster) for _ in range(READERS)]
    async with asyncio.timeout(DEADLINE_S):
        while await cut_off(http) < before + READERS:
            replies = await asyncio.gather(
                *(http.post("/v1/completions", json=BODY | {"max_tokens": 20}) for _ in range(4))
            )
            for reply in replies:
                assert reply.status_code == 200, reply.text
                assert reply.json()["choices"][0]["text"] == expected[0]
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.05)  # between two measurements
    for client in clients:
        client.close()
    return most


async def check_slow_readers(cluster: Cluster, rounds: int) -> None:
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        alone = await http.post("/v1/completions", json=BODY | {"max_tokens": 20})
        expected = [alone.json()["choices"][0]["text"]]
        began = time.perf_counter()
        before = router().memory_info().rss
        most = [await leave_unread(cluster, http, expected) for _ in range(rounds)]
        took = time.perf_counter() - began
    print(
        f"{took:.0f} s; beyond {before >> 20} MiB: {[(each - before) >> 20 for each in most]} MiB"
    )
    assert max(most) - before < READERS * CHOICES * ANSWER_BYTES
    # What one round holds is free again for the next.
    assert max(most[1:]) - most[0] < READERS * CHOICES * ANSWER_BYTES / 4


@pytest.mark.cluster
async def test_answers_that_nobody_reads_hold_nobody_up(cluster: Cluster) -> None:
    await check_slow_readers(cluster, 2)


@pytest.mark.chaos
async def test_the_memory_of_answers_that_nobody_reads_is_given_back(cluster: Cluster) -> None:
    await check_slow_readers(cluster, 12)
