"""Starting, joining and leaving Ray: the only module that calls `ray.init`.

Ray places, watches and restarts the processes. It carries neither tokens nor state.
"""

import contextlib
import logging
import os
import signal
from dataclasses import dataclass
from typing import Any

import psutil
import ray

from baton.deploy.errors import StartError

NAMESPACE = "baton"
_OBJECT_STORE_BYTES = 80 << 20  # the smallest that Ray takes; only configs and replies pass
# Ray gives its own processes 30 s. Sometimes one dies at its start; a second try then succeeds.
_TRIES = 3
_TOKEN_HINT = "; where it asks for a token, set RAY_AUTH_MODE=token as Ray's manual says"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayConfig:
    address: str | None = None  # None: a Ray of our own, which ends with this process
    cpus: int = 1  # logical CPUs of a Ray of our own: what our actors ask for, together


def connect(config: RayConfig) -> None:
    """Start or join Ray, from the main thread. Raises StartError."""
    if ray.is_initialized():
        raise StartError("this process runs a cluster already; stop it first")
    # Ray has no other switch for its usage reports.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"namespace": NAMESPACE, "logging_level": logging.ERROR}
    if config.address is None:
        options |= {
            "address": "local",  # otherwise RAY_ADDRESS would decide
            "num_cpus": config.cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            # With its default, 15, every other process of the machine would run before a step.
            "_system_config": {"worker_niceness": 0},
        }
    else:
        options["address"] = config.address
    on_sigterm = signal.getsignal(signal.SIGTERM)
    where = config.address or "on this machine"
    for left in reversed(range(_TRIES if config.address is None else 1)):
        before = set(psutil.Process().children())
        try:
            ray.init(log_to_driver=False, **options)
            break
        except Exception as err:  # Ray raises nothing narrower when its process does not start
            hint = "" if config.address is None else _TOKEN_HINT
            message = f"Ray {where} does not start or answer: {err}{_end_children(before)}{hint}"
            if not left:
                raise StartError(message) from err
            _log.warning("%s; trying again", message)
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced it


def _end_children(before: set[psutil.Process]) -> str:
    """Kill the processes that a failed start left behind, and describe them."""
    told = []
    for child in psutil.Process().children():
        if child in before:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # it may be gone by now
            told.append(f"{child.name()} ({child.status()})")
            child.kill()
    return f"; its processes were {', '.join(told)}" if told else ""


def leave() -> None:
    """Stop our own Ray, or disconnect from the one that we joined. Our actors end with it."""
    ray.shutdown()
