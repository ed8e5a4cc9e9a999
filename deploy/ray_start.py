"""Ray, in our terms: the one place that starts it, joins it and leaves it.

Ray only places the processes, watches them and starts them again; no token and no state goes
through it.
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
# Ray gives its own processes 30 s. Now and then one dies at birth, and a second try finds it well.
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
    # Ray offers no other way to say that it must not report usage to its makers.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"namespace": NAMESPACE, "logging_level": logging.ERROR}
    if config.address is None:
        options |= {
            "address": "local",  # or RAY_ADDRESS would choose
            "num_cpus": config.cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            # Its default, 15, lets any other process of the machine go before a step.
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
        except Exception as err:  # Ray has no narrower one for "a process of mine did not start"
            hint = "" if config.address is None else _TOKEN_HINT
            message = f"Ray {where} does not start or answer: {err}{_end_children(before)}{hint}"
            if not left:
                raise StartError(message) from err
            _log.warning("%s; trying again", message)
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray put one of its own there


def _end_children(before: set[psutil.Process]) -> str:
    """End what a start that failed has left, which Ray itself does when we exit. What it was."""
    told = []
    for child in psutil.Process().children():
        if child in before:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # it may be gone by now
            told.append(f"{child.name()} ({child.status()})")
            child.kill()
    return f"; its processes were {', '.join(told)}" if told else ""


def leave() -> None:
    """End our own Ray, or take leave of the one we joined. Our actors end with us."""
    ray.shutdown()
