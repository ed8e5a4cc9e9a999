"""A worker that is killed while the disk of Ray's logs is full comes back once that has room."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from chaos.netns import refused_to_unshare

DEADLINE_S = 150.0
DISK = Path("/mnt")
"""The place of the small disk, in a mount namespace of `serve`. Ray's sockets need a short path."""
MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"'

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,  # by its length
    pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root"),
    pytest.mark.skipif(
        refused_to_unshare("ipc") is not None, reason=f"{refused_to_unshare('ipc')}"
    ),
]


class Served:
    """A `baton serve` whose files lie on a small disk."""

    def __init__(self, pid: int, log: Path) -> None:
        self.disk = Path(f"/proc/{pid}/root{DISK}")
        self._pid = pid
        self._log = log
        self._filler = self.disk / "filler"
        self.url = ""

    def said(self, words: str) -> bool:
        return words in self._log.read_text()

    def serves(self) -> bool:
        for state in self.disk.glob("baton-*/*/state.json"):
            with suppress(ValueError):  # half written
                self.url = json.loads(state.read_text())["http_urls"][0]
        return bool(self.url)

    def pid_of(self, worker: str) -> int:
        """Return the process of a worker that the router hears; 0 where it hears none."""
        info = httpx.get(f"{self.url}/server_info", timeout=DEADLINE_S).raise_for_status().json()
        return next((w["pid"] for w in info["workers"] if w["worker_id"] == worker), 0)

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(4096)):
                pass

    def free(self) -> None:
        self._filler.unlink()

    def rests(self) -> bool:
        """Return whether a process of Ray's runs that has no actor, and does nothing for a second.

        Ray counts it as the one in which the worker lives.
        """
        for process in psutil.Process(self._pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.name() == "ray::IDLE":
                    before = process.cpu_times()
                    time.sleep(1.0)  # as long as is measured
                    return process.cpu_times().user - before.user < 0.05
        return False


@contextmanager
def on_a_small_disk(tiny: Path, tmp_path: Path) -> Iterator[Served]:
    log = tmp_path / "serve.log"
    words = [sys.executable, "-m", "baton.cli.main", "serve", "--model", str(tiny), "--memory-gb",
             "0.25", "--threads", "1", "--http-port", "0", "--grpc-port", "0"]  # fmt: skip
    with (
        log.open("w") as said,
        subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", MOUNT, str(DISK), *words],
            env=os.environ | {"TMPDIR": str(DISK)},
            stdout=said,
            stderr=subprocess.STDOUT,
        ) as serve,
    ):
        served = Served(serve.pid, log)
        try:
            until(served.serves, log)
            yield served
        finally:
            serve.terminate()
            serve.wait(DEADLINE_S)


def until(true: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def test_a_worker_comes_back_once_the_disk_has_room(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with on_a_small_disk(tiny, tmp_path) as served:
        killed = served.pid_of("decode-0")
        served.fill()
        psutil.Process(killed).kill()
        until(lambda: served.said("decode-0 has no room: the disk of"), log)
        until(served.rests, log)
        served.free()
        until(lambda: served.pid_of("decode-0") not in (0, killed), log)
        until(lambda: served.said("decode-0 was started again and serves"), log)
