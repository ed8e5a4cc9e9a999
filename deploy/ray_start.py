"""Ray, in our terms: the one place that starts it, joins it and leaves it.

Ray only places the processes, watches them and starts them again; no token and no state goes
through it.
"""

import logging
import os
import signal
from dataclasses import dataclass
from typing import Any

import ray

from baton.deploy.errors import StartError

NAMESPACE = "baton"
_OBJECT_STORE_BYTES = 80 << 20  # the smallest that Ray takes; only configs and replies pass


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
        }
    else:
        options["address"] = config.address
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as err:
        where = config.address or "on this machine"
        raise StartError(f"Ray {where} does not start or answer: {err}") from err
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray put one of its own there


def leave() -> None:
    """End our own Ray, or take leave of the one we joined. Our actors end with us."""
    ray.shutdown()
