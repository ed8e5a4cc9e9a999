"""Hosts of a Ray: namespaces of network, processes, IPC, name, and shared memory of their own.

Linux, root, `ip`. A process of one host sees no other's, as on machines of their own: nobody can
prove by /proc that another has died, and no memory is shared between them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos.netns import Network

DEADLINE_S = 180.0
PORT = 6379
RAY = str(Path(sys.executable).parent / "ray")
TESTS = str(Path(__file__).parents[1])
PAGE = Path(__file__).parents[2] / "docs/hosts.md"
INIT = """
mount -t tmpfs -o size=512m tmpfs /dev/shm
echo $0 > /proc/sys/kernel/hostname
exec "$@"
"""
"""Run as a host's first process: $0 is its name, then comes the command."""
COUNT = """
import sys, time
from baton.deploy.cluster import ray_nodes, ray_start
ray_start.connect(ray_start.RayConfig(sys.argv[1]))
while len(ray_nodes.living_nodes()) != int(sys.argv[2]):
    time.sleep(0.1)
"""


@dataclass
class RayHosts:
    """A Ray whose head is the first host of a network."""

    net: Network
    folder: Path  # a short path, for Ray's sockets
    variables: dict[str, str]  # Ray's, of each host
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)  # by host
    inits: dict[str, int] = field(default_factory=dict)  # pid of each host's first process

    @property
    def head(self) -> str:
        return next(iter(self.net.names))

    @property
    def address(self) -> str:
        return f"{self.net.host(self.head)}:{PORT}"

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment of a host's processes."""
        temporary = self.folder / host / "t"
        temporary.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
        return kept | {
            **self.variables,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": TESTS,
            "TMPDIR": str(temporary),
            # UCX would otherwise move bytes through what containers of one machine share.
            "UCX_TLS": "tcp,self",
        }

    def start(self, host: str, *options: str) -> None:
        """Start a host and its Ray node."""
        role = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
        if host != self.head:
            role = ["--address", self.address]
        ray = [RAY, "start", "--block", "--node-ip-address", self.net.host(host), *role,
               "--temp-dir", str(self.folder / host), "--object-store-memory", str(80 << 20),
               *options]  # fmt: skip
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.net.names[host],
             "unshare", "--pid", "--ipc", "--uts", "--mount", "--mount-proc", "--fork",
             "--kill-child", "sh", "-c", INIT, f"host-{host}", *ray],
            env=self.environment(host), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.processes[host] = process
        until = time.monotonic() + DEADLINE_S
        while not (children := psutil.Process(process.pid).children()):
            assert process.poll() is None and time.monotonic() < until, host
            time.sleep(0.02)
        self.inits[host] = children[0].pid

    def inside(self, host: str, *command: str) -> list[str]:
        """Return the words that run a command on a host."""
        return ["nsenter", "--target", str(self.inits[host]), "--net", "--pid", "--ipc", "--uts",
                "--mount", "--", *command]  # fmt: skip

    def wait_for(self, count: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until so many nodes live in Ray."""
        subprocess.run(
            self.inside(self.head, sys.executable, "-c", COUNT, self.address, str(count)),
            env=self.environment(self.head), timeout=deadline_s, check=True,
        )  # fmt: skip

    def kill(self, host: str) -> None:
        """End all processes of a host at once, as a loss of power does. Idempotent."""
        process = self.processes[host]
        process.kill()  # its child dies with it, and with that first process the whole host
        process.wait(DEADLINE_S)

    def stop_raylet(self, host: str) -> None:
        """Stop a host's raylet: it runs no instruction, and so ends none of its processes."""
        for process in psutil.Process(self.inits[host]).children(recursive=True):
            if process.name() == "raylet":
                process.suspend()

    def logs(self, host: str) -> str:
        """Return what the actors of a host have logged."""
        files = (self.folder / host).glob("session_*/logs/worker-*.err")
        return "".join(path.read_text() for path in files)


def ray_variables(home: Path) -> dict[str, str]:
    """Make Ray's token and return Ray's variables, by what docs/hosts.md has a user type."""
    page = PAGE.read_text().partition("## On Ray\n")[2]
    lines = page.partition("\nStart Ray on the first host")[0].splitlines()
    script = "\n".join([*(line.strip() for line in lines if line.startswith("    ")), "env -0"])
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        ["bash", "-ec", script], env=ours | {"HOME": str(home)}, stdout=subprocess.PIPE, check=True,
        text=True,
    )  # fmt: skip
    pairs = (each.split("=", 1) for each in done.stdout.split("\0") if each.startswith("RAY_"))
    return dict(pairs)


@contextmanager
def ray_hosts(net: Network, folder: Path, options: dict[str, list[str]]) -> Iterator[RayHosts]:
    """Start a Ray node on hosts of `net`, the head on the first, and wait until all live.

    options: of `ray start`, by host; those that it does not name can be started later.
    """
    hosts = RayHosts(net, folder, ray_variables(folder))
    try:
        for host, words in options.items():
            hosts.start(host, *words)
        hosts.wait_for(len(options))
        yield hosts
    finally:
        for host in reversed(hosts.processes):
            hosts.kill(host)
