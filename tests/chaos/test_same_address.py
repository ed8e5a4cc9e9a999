"""A worker that is killed and started again at its old address, as systemd does it.

It is the only one of its role: each request meets two of its lives, or the time between them.
"""

import asyncio
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos.checked_load import checked_load, questions
from chaos.served_hosts import ServedCluster
from deploy.test_by_hand import BATON, ENGINE, certificates, ready, running
from deploy.tiny_worker import DEADLINE_S, TINY
from kit.ports import free_port

from baton.bench.checkpoints import write_checkpoint
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.chaos
HOST = "127.0.0.1"
STREAMS = 24
NEW = 24
LIVES = 6
BETWEEN = 40  # right answers between two deaths


def is_later(workers: dict[str, dict[str, Any]], name: str, incarnation: int) -> bool:
    """Return True once the worker is ready in a later life."""
    return name in workers and workers[name]["incarnation"] > incarnation


@contextmanager
def killed_at_last(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_only_worker_of_a_role_is_replaced_at_its_address(
    role: str, tmp_path: Path
) -> None:
    tiny = write_checkpoint(tmp_path / "tiny", TINY)
    asked = await questions(tiny, random.Random(random.randrange(1 << 32)), STREAMS, NEW)
    authority = certificates(tmp_path / "ca")
    internal = f"{HOST}:{free_port()}"

    def words(of: str) -> list[str]:
        credentials = authority.folder_of(ProcessRole(of), f"{of}-0")
        return [*BATON, "router" if of == "router" else "worker", "--model", str(tiny),
                "--credentials", str(credentials), "--insecure", "--grpc-port", "0"]  # fmt: skip

    def worker(of: str) -> list[str]:
        return [*words(of), "--role", of, "--worker-id", f"{of}-0", "--router", internal,
                "--peer-host", HOST, "--peer-port", str(free_port()), "--http", "0",
                *ENGINE]  # fmt: skip

    other = worker({"prefill": "decode", "decode": "prefill"}[role])
    replaced = worker(role)  # the same words each time, and so the same address
    http_port = free_port()
    router = [*words("router"), "--host", HOST, "--http-port", str(http_port), "--internal-host",
              HOST, "--internal-port", internal.rpartition(":")[2],
              "--worker-wait", str(DEADLINE_S)]  # fmt: skip
    url = f"http://{HOST}:{http_port}"
    with ExitStack() as stack:
        stays = [stack.enter_context(running(*each)) for each in (router, other)]
        life = stack.enter_context(killed_at_last(replaced))
        async with httpx.AsyncClient(base_url=url, timeout=2 * DEADLINE_S) as http:
            await ready(http, stays)
            cluster = ServedCluster(http)
            async with checked_load(cluster, asked, STREAMS) as load:
                for _ in range(LIVES):
                    await load.more(BETWEEN)
                    before = (await cluster.workers())[f"{role}-0"]
                    life.kill()
                    await asyncio.to_thread(life.wait)
                    life = stack.enter_context(killed_at_last(replaced))
                    await cluster.until(
                        partial(is_later, name=f"{role}-0", incarnation=before["incarnation"])
                    )
                    assert (await cluster.workers())[f"{role}-0"]["address"] == before["address"]
                await load.more(BETWEEN)
            load.check()
