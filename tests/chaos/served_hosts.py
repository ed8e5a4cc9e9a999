"""A cluster that `baton serve` runs on Ray's hosts, and clients of it that stay outside."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from chaos.ray_hosts import DEADLINE_S, RayHosts
from deploy.tiny_worker import GRID

HTTP_PORT = 8000
ENGINE = ("--page-size", str(GRID), "--memory-gb", "0.06", "--threads", "1", "--max-running", "8")


@dataclass(frozen=True)
class ServedCluster:
    """A cluster, asked over HTTP."""

    http: httpx.AsyncClient

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers that the router can use now, by their ids."""
        with contextlib.suppress(httpx.TransportError):
            found = (await self.http.get("/server_info")).json()["workers"]
            return {each["worker_id"]: each for each in found if each["ready"]}
        return {}

    async def generate(self, ids: list[int], new: int) -> list[int]:
        """Return the tokens of a streamed answer. Raises httpx.HTTPError, or StreamError."""
        params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": params, "stream": True}
        last: dict[str, Any] = {}
        async with self.http.stream("POST", "/generate", json=body) as reply:
            if reply.status_code != 200:
                raise StreamError((await reply.aread()).decode())
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
                    if "error" in last:
                        raise StreamError(line)
        tokens: list[int] = last["output_ids"]
        return tokens

    async def until(self, true: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait for the workers that are ready to make `true` true."""
        async with asyncio.timeout(DEADLINE_S):
            while not true(await self.workers()):
                await asyncio.sleep(0.1)


@dataclass(frozen=True)
class ServedHosts(ServedCluster):
    """The cluster, asked from this machine's end of the bridge."""

    hosts: RayHosts

    async def host_of(self, worker: str) -> str:
        """Return the host on which a worker runs."""
        address = (await self.workers())[worker]["address"].rpartition(":")[0]
        return next(name for name in self.hosts.net.names if self.hosts.net.host(name) == address)


class StreamError(Exception):
    """An answer that ended with an error."""


def baton(hosts: RayHosts, *words: str) -> list[str]:
    """Return the words that run a `baton` command on the head's host."""
    return hosts.inside(hosts.head, sys.executable, "-m", "baton.cli.main", *words)


def serve_command(hosts: RayHosts, model: Path, *options: str) -> list[str]:
    """Return the words that run `baton serve` on the head's host."""
    return baton(
        hosts, "serve", "--model", str(model), "--ray-address", hosts.address, "--host",
        hosts.net.host(hosts.head), "--http-port", str(HTTP_PORT), "--insecure", *ENGINE, *options,
    )  # fmt: skip


def client_of(
    hosts: RayHosts, host: str | None = None, number: int = 0, timeout_s: float = DEADLINE_S
) -> httpx.AsyncClient:
    """Return a client of a router, with a connection for each request.

    host: where it runs; None: on the head's host. number: the router's.

    A kept connection can be closed by the router, as idle, while its next request waits on a link
    that is cut. The client would read a reset instead of an answer.
    """
    return httpx.AsyncClient(
        base_url=f"http://{hosts.net.host(host or hosts.head)}:{HTTP_PORT + number}",
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


@asynccontextmanager
async def served_hosts(
    hosts: RayHosts, model: Path, workers: set[str], *options: str
) -> AsyncIterator[ServedHosts]:
    """Run `baton serve` on the head's host; yield once these workers are ready.

    In the end it must stop by itself, with exit status 0.
    """
    command = serve_command(hosts, model, *options)
    with subprocess.Popen(command, env=hosts.environment(hosts.head)) as process:
        try:
            async with client_of(hosts) as http:
                served = ServedHosts(http, hosts)
                await served.until(lambda now: _runs(process) and now.keys() >= workers)
                yield served
            for child in psutil.Process(process.pid).children():  # nsenter's, in the host
                child.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def _runs(process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "baton serve has ended"
    return True
