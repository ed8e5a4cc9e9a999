"""Every socket at which the processes of a cluster listen, found by `ss`."""

import re
import shutil
import subprocess
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Listener:
    kind: str  # tcp, udp, u_str, u_seq or u_dgr
    address: str  # host:port, a path, or @name of an abstract socket
    process: str

    @property
    def host(self) -> str:
        host = self.address.rpartition(":")[0].strip("[]")
        return host.removeprefix("::ffff:")  # IPv4 by a socket of IPv6

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def unavailable() -> str | None:
    """Return why sockets cannot be listed here; None where they can."""
    return None if shutil.which("ss") else "sockets are listed by the ss command (iproute2)"


def listeners() -> list[Listener]:
    """Return the listening sockets of this process's tree. A Ray of our own is a part of it."""
    me = psutil.Process()
    names = {me.pid: "test"}
    for process in me.children(recursive=True):
        try:
            names[process.pid] = process.name()
        except psutil.NoSuchProcess:
            continue
    found = []
    listed = subprocess.run(
        ["ss", "-H", "-O", "-lntupx"], check=True, capture_output=True, text=True
    )
    for line in listed.stdout.splitlines():
        words = line.split()
        owners = [int(pid) for pid in re.findall(r"pid=(\d+)", line) if int(pid) in names]
        if owners and words[4] != "*":
            found.append(Listener(words[0], words[4], names[owners[0]]))
    return found
