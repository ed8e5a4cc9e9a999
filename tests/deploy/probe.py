"""Classes in the place of a worker and a router, which tell where and with what they started."""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from baton.core.supervised import ProcessSupervisor
from baton.router.config import RouterConfig
from baton.router.server import RouterStarted
from baton.worker.config import WorkerConfig


@dataclass(frozen=True)
class Found:
    """The surroundings that a probe found at its start."""

    pid: int
    gpus: str | None  # CUDA_VISIBLE_DEVICES
    host: str
    incarnation: int | None
    credentials: Path | None
    files: dict[str, tuple[bytes, int]]  # content and mode in the folder of credentials, by name
    folder_mode: int


class Probe:
    """A `WorkerServed` that serves nobody."""

    def __init__(self, config: WorkerConfig, owner: ProcessSupervisor) -> None:
        self._config = config

    def start(self) -> Found:
        config = self._config
        assert config.credentials is not None
        files = {
            each.name: (each.read_bytes(), stat.S_IMODE(each.stat().st_mode))
            for each in config.credentials.iterdir()
        }
        return Found(
            os.getpid(),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            config.host,
            config.incarnation,
            config.credentials,
            files,
            stat.S_IMODE(config.credentials.stat().st_mode),
        )

    def stop(self, grace_s: float) -> None: ...

    def progress(self) -> tuple[str, float]:
        return "probing", 0.5


@dataclass(frozen=True)
class RouterFound(RouterStarted):
    config: RouterConfig  # of this life


class RouterProbe:
    """A `RoutingServed` that serves nobody, and says that it listens."""

    def __init__(self, config: RouterConfig, owner: ProcessSupervisor) -> None:
        self._config = config

    def start(self) -> RouterFound:
        host, internal = self._config.host, f"{self._config.internal_host}:3"
        return RouterFound(f"{host}:1", f"{host}:2", internal, os.getpid(), self._config)

    def stop(self, grace_s: float) -> None: ...

    def retire(self, ranks: Collection[int]) -> None: ...

    def leave(self) -> None: ...
