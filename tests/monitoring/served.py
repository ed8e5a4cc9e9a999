"""A cluster started by `baton serve`, and the faults that tests make in it."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from https_certificates import DAY, TestAuthority
from prometheus_server import Prometheus, prometheus

from baton.api.access.keys import Key, KeyScope, digest_of, write_keys
from baton.bench.cluster.stream_client import RequestFailed, exchange
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import authorities
from baton.deploy.errors import NotRunning

VOCABULARY = 115
DEADLINE_S = 180.0
KEY = "a-key-that-this-test-made-up-of-many-characters"


@dataclass(frozen=True)
class Served:
    """A running cluster: two prefill workers, a decode group of two ranks, keys and TLS."""

    address: RouterAddress
    folder: Path
    authority: TestAuthority

    @property
    def host_port(self) -> str:
        return self.address.url.removeprefix("https://")

    def info(self) -> Mapping[str, Any]:
        """Return what `baton status --json` prints; nothing while the router is away."""
        try:
            client = RouterClient(self.address.url, self.address.api_key, self.address.trust)
            return client.server_info()
        except NotRunning:
            return {"workers": []}

    def pids(self, role: str) -> list[int]:
        return [w["pid"] for w in self.info()["workers"] if w["role"] == role]

    def whole(self) -> bool:
        """Return True if all four workers are ready."""
        return sum(w["ready"] for w in self.info()["workers"]) == 4

    def router_pid(self) -> int:
        """Return the process that listens on the router's port."""
        port = self.host_port.rpartition(":")[2]
        out = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True,
                             check=True).stdout  # fmt: skip
        return int(out.partition("pid=")[2].partition(",")[0])

    @contextmanager
    def watched(self, folder: Path, speed: float) -> Iterator[Prometheus]:
        """Run a Prometheus that watches the cluster. speed: divides the lengths in its rules."""
        with prometheus(
            folder, self.host_port, speed=speed, scheme="https", api_key=KEY
        ) as running:
            yield running

    @asynccontextmanager
    async def load(
        self, clients: int, prompt: Callable[[], Sequence[int]], tokens: int
    ) -> AsyncIterator[None]:
        """Let `clients` ask over and over. An answer that a fault ends is asked for again."""

        async def ask() -> None:
            while True:
                body = {"prompt": list(prompt()), "max_tokens": tokens, "temperature": 0,
                        "ignore_eos": True, "return_token_ids": True}  # fmt: skip
                try:
                    (await exchange(self.address, body, DEADLINE_S)).answer()
                except RequestFailed:
                    await asyncio.sleep(0.1)

        asking = [asyncio.create_task(ask()) for _ in range(clients)]
        try:
            yield
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def drawn(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


@asynccontextmanager
async def pulses(pids: Sequence[int], stopped_s: float, running_s: float) -> AsyncIterator[None]:
    """Stop processes again and again, each time for `stopped_s`."""

    async def beat() -> None:
        while True:
            for sign, pause_s in ((signal.SIGSTOP, stopped_s), (signal.SIGCONT, running_s)):
                for pid in pids:
                    os.kill(pid, sign)
                await asyncio.sleep(pause_s)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Start the cluster by `baton serve`, and stop it at the end."""
    authority = TestAuthority.make()
    files = authority.issue(folder, ends=DAY)
    write_keys(folder / "keys.json", [Key("ada", digest_of(KEY), frozenset(KeyScope), max_n=1)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = RouterAddress(
        f"https://127.0.0.1:{port}", KEY, authorities(authority.write(folder / "ca.pem"))
    )
    words = [sys.executable, "-m", "baton.cli.main", "serve",
             "--prefill", "2", "--decode-dp", "2", "--threads", "1", "--max-running", "8",
             "--memory-gb", "0.04", "--state-return", "demand", "--http-port", str(port),
             "--grpc-port", "0", "--api-keys", str(folder / "keys.json"),
             "--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]  # fmt: skip
    running = Served(address, folder, authority)
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not running.whole():
            said = (folder / "serve.log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        yield running
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
