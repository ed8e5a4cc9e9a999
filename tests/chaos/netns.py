"""Network namespaces joined by a bridge, and their links, to be cut. Linux, root, `ip`."""

import asyncio
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
LINK = "eth0"  # a worker's, in its namespace
_numbers = itertools.count(1)


def unavailable() -> str | None:
    """Return why there can be no network namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the ip command (iproute2)"
    return refused_to_unshare("net")


def refused_to_unshare(what: str) -> str | None:
    """Return why there can be no namespace of this kind, with mounts of its own; what: unshare's
    word."""
    tried = subprocess.run(
        ["unshare", f"--{what}", "--mount", "--fork", "true"],
        capture_output=True,
        check=False,
        text=True,
    )
    return tried.stderr.strip() if tried.returncode else None


def enter(name: str) -> None:
    """Move this process, which has one thread yet, into the namespace, with a /sys that shows its
    own devices: UCX looks there."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *args: object) -> None:
        if getattr(libc, function)(*args) != 0:
            raise OSError(ctypes.get_errno(), f"{function} for network namespace {name}")

    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    call("setns", handle, CLONE_NEWNET)
    os.close(handle)
    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    call("umount2", b"/sys", MNT_DETACH)
    call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)


@dataclass
class Network:
    """One bridge with an address of ours, and a namespace a worker with one link to it."""

    number: int
    names: dict[str, str] = field(default_factory=dict)  # namespace by worker

    @property
    def bridge(self) -> str:
        return f"bt{os.getpid() % 100000}b{self.number}"

    def _subnet(self) -> str:
        return f"10.{64 + os.getpid() % 64}.{self.number % 256}"

    def host(self, worker: str) -> str:
        return f"{self._subnet()}.{2 + list(self.names).index(worker)}"

    def add(self, worker: str) -> None:
        """A namespace for `worker`, linked."""
        namespace = self.names[worker] = f"{self.bridge}{worker}"
        ours = self._link(worker)
        _ip("netns", "add", namespace)
        self._wire(ours, namespace)
        _ip("link", "set", ours, "master", self.bridge, "up")
        _ip("-n", namespace, "addr", "add", f"{self.host(worker)}/24", "dev", LINK)
        _ip("-n", namespace, "link", "set", LINK, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")

    async def cut(self, worker: str) -> None:
        """Disconnect the worker: no packet passes, and nobody is told."""
        await asyncio.to_thread(_ip, "link", "set", self._link(worker), "nomaster")

    async def mend(self, worker: str) -> None:
        await asyncio.to_thread(_ip, "link", "set", self._link(worker), "master", self.bridge)

    def carried(self, worker: str) -> int:
        """Return the bytes that the worker has sent over its link."""
        link = Path("/sys/class/net") / self._link(worker)
        return int((link / "statistics/rx_bytes").read_text())

    def _wire(self, ours: str, namespace: str) -> None:
        """Make the link: our end, to be joined to the bridge, and the namespace's."""
        _ip("link", "add", ours, "type", "veth", "peer", "name", LINK, "netns", namespace)

    def _link(self, worker: str) -> str:
        return f"{self.bridge}{worker}"[-15:]


@contextmanager
def network(*workers: str) -> Iterator[Network]:
    with _made(Network(next(_numbers)), workers) as made:
        yield made


@dataclass
class SlowNetwork(Network):
    """A network whose links have a rate and a delay."""

    rate: str = "100mbit"  # of each direction, as tc spells it

    def _wire(self, ours: str, namespace: str) -> None:
        """The relay has made both ends."""
        _ip("link", "set", f"{ours}f", "netns", namespace)
        _ip("-n", namespace, "link", "set", f"{ours}f", "name", LINK)
        _run("tc", "qdisc", "replace", "dev", ours, *_tbf(self.rate))
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", LINK, *_tbf(self.rate))

    def limit(self, worker: str, rate: str) -> None:
        """Give what goes to a worker another rate."""
        _run("tc", "qdisc", "replace", "dev", self._link(worker), *_tbf(rate, "8kb"))

    def _link(self, worker: str) -> str:
        return f"{self.bridge}{worker}"[-14:]  # the relay's other end has a letter more


def _tbf(rate: str, burst: str = "64kb") -> tuple[str, ...]:
    return ("root", "tbf", "rate", rate, "burst", burst, "latency", "200ms")


@contextmanager
def slow_network(*workers: str, delay_ms: float, rate: str) -> Iterator[SlowNetwork]:
    made = SlowNetwork(next(_numbers), rate=rate)
    names = [made._link(worker) for worker in workers]
    relay = Path(__file__).with_name("link_relay.py")
    words = [sys.executable, str(relay), str(delay_ms), *(f"{name}:{name}f" for name in names)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            with _made(made, workers):
                yield made
        finally:
            process.kill()


@contextmanager
def _made(made: Network, workers: tuple[str, ...]) -> Iterator[Network]:
    try:
        _ip("link", "add", made.bridge, "type", "bridge")
        _ip("addr", "add", f"{made._subnet()}.1/24", "dev", made.bridge)
        _ip("link", "set", made.bridge, "up")
        for worker in workers:
            made.add(worker)
        yield made
    finally:
        for namespace in made.names.values():
            subprocess.run(["ip", "netns", "del", namespace], check=False)
        subprocess.run(["ip", "link", "del", made.bridge], check=False)


def _ip(*args: str) -> None:
    _run("ip", *args)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def route(net: Network, worker: str) -> None:
    """Let the worker reach every address of this machine."""
    _ip("-n", net.names[worker], "route", "add", "default", "via", f"{net._subnet()}.1")
