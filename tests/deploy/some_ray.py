"""A Ray of several nodes on this machine, each with a loopback address of its own."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from kit.polling import wait_until
from kit.ports import free_port

DEADLINE_S = 150.0
RAY = str(Path(sys.executable).parent / "ray")
TESTS = str(Path(__file__).parents[1])
"""The folder with the classes that tests run as actors."""


@dataclass
class SomeRay:
    """The head and the other nodes; `ray start --block` runs each."""

    address: str
    token: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)  # by address

    @property
    def env(self) -> dict[str, str]:
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            # A node whose processes are gone is lost after five questions, by default each 3 s.
            "RAY_health_check_period_ms": "300",
        }

    def start(self, host: str, *options: str) -> None:
        """Start the node of one address."""
        words = [RAY, "start", "--block", "--node-ip-address", host,
                 "--object-store-memory", str(80 << 20), *options]  # fmt: skip
        self.processes[host] = subprocess.Popen(
            words,
            env=os.environ | self.env | {"PYTHONPATH": TESTS},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def join(self, host: str, *options: str) -> None:
        self.start(host, "--address", self.address, *options)

    def kill_all(self) -> None:
        """Kill all nodes, those that joined last first."""
        for host in reversed(self.processes):
            self.kill(host)

    def kill(self, host: str) -> None:
        """Kill all processes of a node at once. Idempotent."""
        process = self.processes[host]
        if process.poll() is not None:
            return
        ours: list[subprocess.Popen[bytes] | psutil.Process] = [process]
        ours += psutil.Process(process.pid).children(recursive=True)
        for each in ours:
            try:
                each.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        process.wait(DEADLINE_S)


@contextmanager
def some_ray(folder: Path, head: str, *options: str) -> Iterator[SomeRay]:
    """Start a head that asks for a token, and end it with all nodes that have joined."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    port = free_port(head)
    ray = SomeRay(f"{head}:{port}", token)
    with ExitStack() as stack:
        stack.callback(ray.kill_all)
        ray.start(head, "--head", "--port", str(port), "--include-dashboard", "false", *options)
        wait_until(lambda: _listens(head, port), lambda: "Ray's head does not come up")
        yield ray


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
