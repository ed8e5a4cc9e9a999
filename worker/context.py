"""What a role's service is given by the worker that it serves in."""

from dataclasses import dataclass
from typing import Protocol

from grpc import aio

from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.local_channel import LocalHub
from baton.transfer.poller import Poller
from baton.transfer.regions import EngineMemory
from baton.worker.config import WorkerConfig
from baton.worker.engine_port import EngineBatchHandler, EnginePort
from baton.worker.grammars import Grammars
from baton.worker.handoff_book import HandoffBook
from baton.worker.metrics import WorkerMetrics


@dataclass(frozen=True)
class WorkerContext:
    config: WorkerConfig
    engine: Engine  # only what never changes may be read here: the engine's thread owns the rest
    port: EnginePort
    grammars: Grammars
    memory: EngineMemory
    data_address: str  # host:port where the gRPC channel's receiver listens
    hello: common_pb2.Hello  # this worker's, sent first on every stream
    metrics: WorkerMetrics
    handoffs: HandoffBook
    poller: Poller
    hub: LocalHub | None  # where the engines of this process meet; None: there is but one

    @property
    def worker_id(self) -> str:
        return self.config.worker_id

    @property
    def lease_s(self) -> float:
        return self.config.lease_s


class RoleService(EngineBatchHandler, Protocol):
    """Prefill or decode. Everything is called on the asyncio thread."""

    def add_to(self, server: aio.Server) -> None: ...

    @property
    def busy(self) -> int:
        """Requests that a drain waits for."""
        ...

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        """The workers that a stream is open with."""
        ...

    def channels(self) -> dict[str, str]:
        """Of each peer, by its worker id, the channel that was chosen and why."""
        ...

    async def close(self) -> None:
        """End every stream and everything that is under way."""
        ...
