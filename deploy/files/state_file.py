"""Files in which running clusters publish their addresses, so that other commands need no flags.

Each cluster has a folder of its own in this user's folder, with one JSON file and one socket.
"""

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from baton.deploy.errors import DeployError, NotRunning, StartError
from baton.deploy.files.owned_folder import owned_folders

_STATE = "state.json"
_STARTING = "starting.json"
"""The state of a cluster that does not serve yet."""
_CONNECT_S = 0.5


@dataclass(frozen=True)
class ClusterState:
    """The addresses of one cluster. Whoever runs it writes them."""

    name: str
    # The process with which the cluster ends; None: one that runs on a joined Ray by itself.
    pid: int | None
    pid_started: float | None  # that process's creation time
    started: float  # Unix time
    model: str
    http_urls: Sequence[str]  # of its routers
    grpc_address: str
    control: str  # the socket at which that process takes requests
    certificate: str | None = None  # the file of the certificate that clients see; None: no TLS

    @property
    def http_url(self) -> str:
        """Return the URL of the first router that takes connections; of the very first if none
        does."""
        urls = self.http_urls if len(self.http_urls) > 1 else ()
        return next(filter(_listens, urls), self.http_urls[0])

    @property
    def alive(self) -> bool:
        """True when that process runs and is visible from here, or where there is none."""
        if self.pid is None or self.pid_started is None:
            return True
        try:
            return abs(psutil.Process(self.pid).create_time() - self.pid_started) < 1.0
        except psutil.NoSuchProcess:
            return False


def _listens(url: str) -> bool:
    """Return whether something takes connections at a router's URL."""
    parts = urlsplit(url)
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), _CONNECT_S):
        return True
    return False


def control_path(own: Path) -> Path:
    """Return the control socket's path in a cluster's folder."""
    return own / "control.sock"


def folder(parent: Path | None = None) -> Path:
    """Return this user's folder in `parent`, and create it if needed.

    parent: the temporary folder when left out. Raises DeployError if another user may enter it.
    """
    path = (parent or _temporary()) / f"baton-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DeployError(f"{path} must be a folder that only you can enter (mode 700); remove it")
    return path


def _temporary() -> Path:
    """Return the folder for temporary files, also while its disk is full.

    `tempfile` then takes another one, in which nobody would find the clusters that run.
    """
    named = (tempfile.tempdir, *map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp")
    usable = (each for each in named if each and os.path.isdir(each) and os.access(each, os.W_OK))
    return Path(next(usable, None) or tempfile.gettempdir()).absolute()


class StateFile:
    """The state file of one cluster, in the cluster's folder."""

    def __init__(self, own: Path, state: ClusterState) -> None:
        self.state = state
        self._own = own
        self._serves = False

    def starts(self) -> None:
        """Write the state of a cluster that does not serve yet."""
        self._write(_STARTING)

    def serves(self) -> None:
        self._serves = True
        self._write(_STATE)
        (self._own / _STARTING).unlink(missing_ok=True)

    def move(self, http_urls: Sequence[str], grpc_address: str) -> None:
        """Say where the routers are now."""
        state = replace(self.state, http_urls=http_urls, grpc_address=grpc_address)
        if state != self.state:
            self.state = state
            self._write(_STATE if self._serves else _STARTING)

    def remove(self) -> None:
        for name in (_STATE, _STARTING):
            (self._own / name).unlink(missing_ok=True)

    def _write(self, name: str) -> None:
        path = self._own / name
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self.state)))
        draft.replace(path)  # atomic: readers see the whole file or none


@contextmanager
def published(own: Path, state: ClusterState) -> Iterator[StateFile]:
    """Keep the state file of a cluster in `own`, its folder, until the context ends.

    It says that the cluster starts until `serves` is called; a file that says so already, of the
    supervisor's last life, stays.
    """
    file = StateFile(own, state)
    if not (own / _STATE).exists():
        file.starts()
    try:
        yield file
    finally:
        file.remove()


def process_named(pid: int) -> tuple[int, float]:
    """Return the pid and the creation time of a process, which name it for good."""
    return pid, psutil.Process(pid).create_time()


def newest(name: str | None = None, *, starting: bool = False) -> ClusterState:
    """Return the running cluster of this name, or the one that this user started last.

    starting: one that does not serve yet counts too. Raises NotRunning.
    """
    files = (_STATE, _STARTING) if starting else (_STATE,)
    found = [_read(own / file) for own in owned_folders(folder()) for file in files]
    running = [state for state in found if state is not None and state.alive]
    named = [state for state in running if name in (None, state.name)]
    if named:
        return max(named, key=lambda state: state.started)
    if running:
        there = ", ".join(sorted(state.name for state in running))
        raise NotRunning(
            f"no cluster of yours on this machine has the name {name!r}; running: {there}"
        )
    if not starting:
        state = newest(name, starting=True)
        raise NotRunning(f"the cluster {state.name} does not serve yet; see `baton status`")
    raise NotRunning(
        "no cluster of yours runs on this machine; start one with `baton serve --model DIR`, "
        "or name one with --url"
    )


def check_unused(name: str) -> None:
    """Raise StartError if a running cluster of this user on this machine has this name."""
    try:
        found = newest(name, starting=True)
    except NotRunning:
        return
    raise StartError(
        f"--cluster {name}: your cluster at {found.http_url} has this name; stop it "
        f"(`baton stop --cluster {name}`) or choose another name"
    )


def _read(path: Path) -> ClusterState | None:
    """Return the state in a file, or None if the file is gone or another version wrote it."""
    try:
        return ClusterState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
