"""Files in which running clusters publish their addresses, so that other commands need no flags.

Each cluster has a folder of its own in this user's folder, with one JSON file and one socket.
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

from baton.deploy.client.owned_folder import owned_folders
from baton.deploy.errors import DeployError, NotRunning

_STATE = "state.json"


@dataclass(frozen=True)
class ClusterState:
    """The addresses of one cluster. `baton serve` writes them once the cluster is ready."""

    pid: int  # of `baton serve`; a signal to it stops the cluster
    started: float  # that process's creation time
    model: str
    http_url: str
    grpc_address: str
    control: str  # the socket at which that process takes requests
    certificate: str | None = None  # the file of the certificate that clients see; None: no TLS

    @property
    def alive(self) -> bool:
        """True when that process runs, and is visible from here: commands send it signals."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        except psutil.NoSuchProcess:
            return False


def control_path(own: Path) -> Path:
    """Return the control socket's path in a cluster's folder."""
    return own / "control.sock"


def folder(parent: Path | None = None) -> Path:
    """Return this user's folder in `parent`, and create it if needed.

    parent: the temporary folder when left out. Raises DeployError if another user may enter it.
    """
    path = (parent or Path(tempfile.gettempdir())) / f"baton-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DeployError(f"{path} must be a folder that only you can enter (mode 700); remove it")
    return path


@contextmanager
def published(
    own: Path, model: str, http_url: str, grpc_address: str, certificate: Path | None = None
) -> Iterator[ClusterState]:
    """Keep the state file of this process in `own`, its folder, until the context ends."""
    me = psutil.Process()
    state = ClusterState(
        me.pid,
        me.create_time(),
        model,
        http_url,
        grpc_address,
        str(control_path(own)),
        None if certificate is None else str(certificate),
    )
    path = own / _STATE
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(state)))
    draft.replace(path)  # atomic: readers see the whole file or none
    try:
        yield state
    finally:
        path.unlink(missing_ok=True)


def newest() -> ClusterState:
    """Return the running cluster that this user started last. Raises NotRunning."""
    found = [_read(own / _STATE) for own in owned_folders(folder())]
    running = [state for state in found if state is not None and state.alive]
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
