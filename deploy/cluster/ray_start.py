"""Starting, joining and leaving Ray: the only module that calls `ray.init`.

Ray places, watches and restarts the processes. It carries neither tokens nor state.

Whoever can call Ray runs any code as this user. A Ray of our own therefore listens on loopback
alone and asks for a token, and its files and sockets lie in a folder that only this user can enter.
"""

import contextlib
import gc
import logging
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from baton.core.address import is_loopback
from baton.deploy.cluster import ray_private
from baton.deploy.errors import StartError
from baton.deploy.files.state_file import folder

TOKEN = "token"
"""The file, in the folder of a Ray of our own, that holds its token."""
LOOPBACK = "127.0.0.1"
_LONGEST_PARENT = 31
"""Characters: we add 9 for a folder, Ray up to 66 for its sockets; a socket's path holds 107."""

_OBJECT_STORE_BYTES = 80 << 20  # the smallest that Ray takes; only configs and replies pass
# Ray gives its own processes 30 s. Sometimes one dies at its start; a second try then succeeds.
_TRIES = 3
KILL_S = 10.0
"""The most that the processes of a failed start may take to end once they are killed."""
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayConfig:
    address: str | None = None  # None: a Ray of our own, which ends with this process
    cpus: int = 1  # logical CPUs of a Ray of our own: what our actors ask for, together
    folder: Path | None = None  # of a Ray of our own: only this user can enter it
    namespace: str = "baton"  # of the actors; each cluster has its own


def connect(config: RayConfig) -> None:
    """Start or join Ray, from the main thread. Raises StartError."""
    if ray.is_initialized():
        raise StartError("this process runs a cluster already; stop it first")
    # Ray has no other switch for its usage reports.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if config.address is None:
            _start(config)
        else:
            _join(config)
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced it


def parent_folder() -> Path:
    """Return this user's folder for the files of Ray, whose path must be short.

    Raises DeployError if another user may enter it.
    """
    usual = folder()
    return usual if len(str(usual)) <= _LONGEST_PARENT else folder(Path("/tmp"))


def logs_folder() -> Path:
    """Return the folder, on this machine, with the logs of Ray's processes and of ours.

    The standard error of an actor is worker-*-PID.err. Ray has started.
    """
    return ray_private.logs_folder()


def control_store_address() -> str:
    """Return where Ray's control store listens, host:port. Ray has started or was joined."""
    return str(ray.get_runtime_context().gcs_address)


def leave() -> None:
    """Stop our own Ray, or disconnect from the one that we joined. Our actors end with it."""
    ray.shutdown()


def _start(config: RayConfig) -> None:
    assert config.folder is not None
    os.environ |= {_MODE: "token", _TOKEN_PATH: str(_new_token(config.folder))}
    os.environ.pop(_TOKEN, None)  # it would take precedence
    options = {
        "address": "local",  # otherwise RAY_ADDRESS would decide
        "num_cpus": config.cpus,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_temp_dir": str(config.folder),
        "_node_ip_address": LOOPBACK,
        # With its default, 15, every other process of the machine would run before a step.
        "_system_config": {"worker_niceness": 0},
    }
    for left in reversed(range(_TRIES)):
        before = set(psutil.Process().children())
        try:
            with ray_private.loopback_kept():
                _init(config, options)
            break
        except Exception as err:  # Ray raises nothing narrower when its process does not start
            message = f"Ray on this machine does not start: {err}{_end_children(before)}"
            if not left:
                raise StartError(f"{message}; its logs are in {config.folder}") from err
            _log.warning("%s; trying again", message)
    _check_confined()


def _join(config: RayConfig) -> None:
    address = config.address
    _check_token(os.environ)
    os.environ.setdefault(_MODE, "token")
    try:
        _init(config, {"address": address})
    except Exception as err:  # Ray raises nothing narrower
        raise StartError(
            f"Ray at {address} does not answer: {err}; it must run there with RAY_AUTH_MODE=token, "
            f"and {_TOKEN_PATH} must name a file with its token"
        ) from err


def _init(config: RayConfig, options: Mapping[str, Any]) -> None:
    ray_private.read_token_again()
    ray_private.tell_lines(_log_told)
    ray.init(
        namespace=config.namespace, logging_level=logging.ERROR, log_to_driver=False, **options
    )


def _log_told(data: Mapping[str, Sequence[str]], ignore_prefix: bool) -> None:
    """Log what Ray would print. It tells of each worker that dies, in terms of its own; `serve`
    says so in ours. That memory ran out is known to Ray alone.
    """
    for line in data["lines"]:
        level = logging.WARNING if "memory pressure" in line else logging.DEBUG
        _log.log(level, "Ray says: %s", line)


def _new_token(folder: Path) -> Path:
    path = folder / TOKEN
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


def _check_token(environment: Mapping[str, str]) -> None:
    """Raise StartError where nothing says which token the joined Ray asks for."""
    if environment.get(_MODE, "token").lower() == "disabled":
        raise StartError(
            f"{_MODE} is disabled: whoever reaches a Ray without a token runs any code there. "
            f"Start that Ray with {_MODE}=token, and unset the variable here"
        )
    default = Path.home() / ".ray" / "auth_token"
    if environment.get(_TOKEN) or environment.get(_TOKEN_PATH) or default.exists():
        return
    raise StartError(
        f"joining a Ray needs its token: set {_TOKEN_PATH} to a file with it, or copy it to "
        f"{default} (`ray get-auth-token` prints it where that Ray runs)"
    )


def _check_confined() -> None:
    """Stop Ray and raise StartError where its node has another address than loopback's."""
    address = ray.util.get_node_ip_address()
    if not is_loopback(address):
        ray.shutdown()
        raise StartError(
            f"Ray {ray.__version__} listens on {address} instead of loopback; use a version that "
            "Baton was tested with, as constraints.txt names it"
        )


def _end_children(before: set[psutil.Process]) -> str:
    """End the processes that a failed start left behind, and describe them."""
    told, killed = [], []
    for child in psutil.Process().children():
        if child in before:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # it may be gone by now
            if _is_resource_tracker(child):
                continue  # this Python's own: shared memory and forks of any kind need it
            told.append(f"{child.name()} ({child.status()})")
            child.kill()
            killed.append(child)
    psutil.wait_procs(killed, KILL_S)  # or each stays a zombie until this process ends
    _tell_handles({child.pid for child in killed})
    return f"; its processes were {', '.join(told)}" if told else ""


def _is_resource_tracker(child: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in word for word in child.cmdline())
    except psutil.ZombieProcess:  # it has ended by itself, and nobody has waited for it
        return False


def _tell_handles(ended: set[int]) -> None:
    """Let Ray's handles know that these processes have ended: each would warn, whenever it is
    collected, that its process still runs.
    """
    for handle in gc.get_objects():
        if issubclass(type(handle), subprocess.Popen) and handle.pid in ended:
            handle.poll()
