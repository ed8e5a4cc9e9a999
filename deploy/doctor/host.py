"""Checks of this machine's limits: open files, disk, clock and ports."""

import ctypes
import resource
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from baton.api.access.client_limits import ClientLimits
from baton.deploy.cluster.disk_space import full_disk
from baton.deploy.doctor.finding import Finding, Level, ok
from baton.deploy.errors import DeployError
from baton.deploy.files.state_file import folder
from baton.deploy.process.ports import settle

LEAST_FILES = 1024
"""Ray's processes and a worker with a few NIXL agents open several hundred."""
_OWN_FILES = 256
"""Files of the router besides its clients' connections."""
FULLEST = 0.95
"""The share of a disk from which Ray writes no objects to it."""
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def check_open_files() -> Finding:
    """Check the number of files that a process may open: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "as root" if hard == soft else f"up to {hard:,} are allowed"
    remedy = f"ulimit -n 65536 ({most}); for systemd LimitNOFILE=65536"
    wanted = ClientLimits().connections
    if soft < LEAST_FILES:
        return Finding(
            "open files", Level.PROBLEM, f"{soft:,} a process",
            "Ray or a worker with several peers runs out of them", remedy,
        )  # fmt: skip
    if soft < wanted + _OWN_FILES:
        return Finding(
            "open files", Level.WARNING, f"{soft:,} a process",
            f"the router accepts fewer clients' connections than its default, {wanted:,}", remedy,
        )  # fmt: skip
    return ok("open files", f"{soft:,} a process")


def check_folder() -> Finding:
    """Check this user's folder, where clusters publish their addresses and Ray keeps its files."""
    try:
        found = folder()
    except DeployError as err:
        return Finding(
            "folder", Level.PROBLEM, str(err), "`baton serve` does not start",
            "do what the message says, or set XDG_RUNTIME_DIR to a folder of your own",
        )  # fmt: skip
    if full := full_disk(found):
        return Finding(
            "folder", Level.PROBLEM, full, "`baton serve` does not start", "free some space there"
        )
    usage = shutil.disk_usage(found)
    told = f"{found}, {usage.free >> 30} GiB free"
    if usage.used < FULLEST * usage.total:
        return ok("folder", told)
    return Finding(
        "folder", Level.WARNING, told,
        "Ray writes nothing to a disk that is 95 % full, and logs end",
        "free some space there",
    )  # fmt: skip


def check_clock(now: float | None = None) -> Finding:
    """Check that certificates, which name times, would be valid by this machine's clock."""
    now = time.time() if now is None else now
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    installed = Path(__file__).stat().st_mtime
    if now < installed:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(installed))
        return Finding(
            "clock", Level.PROBLEM, f"{told}, but Baton was installed on {when}",
            "other machines' certificates are not valid yet by this clock, so workers are refused",
            "set the clock, and keep it with chrony or systemd-timesyncd",
        )  # fmt: skip
    if _adjtimex() == _UNSYNCHRONISED:
        return Finding(
            "clock", Level.NOTE,
            f"{told}, without a time server; a cluster's machines may differ by five minutes",
        )  # fmt: skip
    return ok("clock", told)


def _adjtimex() -> int:
    """Return the state of the kernel's clock, or -1 where the system does not tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return -1
    timex = ctypes.create_string_buffer(256)  # zeros: reads, sets nothing
    return int(libc.adjtimex(timex))


def check_ports(host: str, wanted: Mapping[str, int]) -> list[Finding]:
    """Check that each port can be bound. wanted: ports by the names of `baton serve`'s options."""
    return [_check_port(host, option, port) for option, port in wanted.items()]


def _check_port(host: str, option: str, port: int) -> Finding:
    with ExitStack() as held:
        try:
            settle(host, {option: port}, held)
        except DeployError as err:
            return Finding(
                "port", Level.PROBLEM, str(err), "`baton serve` with its defaults does not start",
                f"`ss -ltnp` names the process that listens; or give {option} 0",
            )  # fmt: skip
    return ok("port", f"{option} {port} on {host} is free")
