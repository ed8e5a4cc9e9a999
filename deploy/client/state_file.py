"""Files in which running clusters publish their addresses, so that other commands need no flags.

There is one JSON file per cluster, named after the serving process, in a folder that only this user
can write to.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from baton.deploy.errors import DeployError, NotRunning


@dataclass(frozen=True)
class ClusterState:
    """The addresses of one cluster. `baton serve` writes them once the cluster is ready."""

    pid: int  # of `baton serve`; a signal to it stops the cluster
    started: float  # that process's creation time: the kernel reuses pids
    model: str
    http_url: str
    grpc_address: str
    control: str  # the socket at which that process takes requests
    certificate: str | None = None  # the file of the certificate that clients see; None: no TLS

    @property
    def alive(self) -> bool:
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        except psutil.NoSuchProcess:
            return False


def control_path() -> Path:
    """Return the control socket's path of this process. Raises DeployError as `folder` does."""
    return folder() / f"{os.getpid()}.sock"


def folder() -> Path:
    """Return this user's folder, and create it if needed.

    Raises DeployError if another user could have written there.
    """
    path = Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise DeployError(f"{path} must be a folder that only you can write to; remove it")
    return path


@contextmanager
def published(
    model: str, http_url: str, grpc_address: str, certificate: Path | None = None
) -> Iterator[ClusterState]:
    """Keep this process's state file in place until the context ends."""
    me = psutil.Process()
    state = ClusterState(
        me.pid,
        me.create_time(),
        model,
        http_url,
        grpc_address,
        str(control_path()),
        None if certificate is None else str(certificate),
    )
    path = folder() / f"{me.pid}.json"
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(state)))
    draft.replace(path)  # atomic: readers see the whole file or none
    try:
        yield state
    finally:
        path.unlink(missing_ok=True)


def newest() -> ClusterState:
    """Return the running cluster that this user started last. Raises NotRunning."""
    running: list[ClusterState] = []
    for path in folder().glob("*.json"):
        state = _read(path)
        if state is not None and state.alive:
            running.append(state)
        else:
            path.unlink(missing_ok=True)
    if not running:
        raise NotRunning(
            "no cluster of yours runs on this machine; start one with `baton serve --model DIR`, "
            "or name one with --url"
        )
    return max(running, key=lambda state: state.started)


def _read(path: Path) -> ClusterState | None:
    """Return the state in a file, or None if the file is gone or another version wrote it."""
    try:
        return ClusterState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
