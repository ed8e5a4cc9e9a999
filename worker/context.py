"""The parts of a worker that its role's service uses."""

from dataclasses import dataclass
from typing import Protocol

from grpc import aio

from baton.core.errors import InvariantError, StoppedError
from baton.core.supervised import ProcessSupervisor
from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.rpc.credentials import Credentials
from baton.rpc.tracing import Tracing
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.channels.poller import Poller
from baton.transfer.memory.regions import Memory
from baton.worker.config import WorkerConfig
from baton.worker.engine_port import EnginePort, EventBatch
from baton.worker.grammars import Grammars
from baton.worker.handoff_tracker import HandoffTracker
from baton.worker.metrics import WorkerMetrics
from baton.worker.profiler import Profiler


@dataclass(frozen=True)
class WorkerContext:
    config: WorkerConfig
    owner: ProcessSupervisor  # of all that runs beside its maker in this process
    engine: Engine  # only what never changes may be read here: the engine's thread owns the rest
    port: EnginePort
    grammars: Grammars
    memory: Memory
    hello: common_pb2.Hello  # this worker's, sent first on every stream
    metrics: WorkerMetrics
    handoffs: HandoffTracker
    poller: Poller
    profiler: Profiler
    own_credentials: Credentials | None  # None: it stands alone and has no peers
    tracing: Tracing | None  # None: no spans are sent
    hub: LocalHub | None  # where the engines of this process meet; None: there is but one

    @property
    def worker_id(self) -> str:
        return self.config.worker_id

    @property
    def credentials(self) -> Credentials:
        """Return what this worker proves its identity to peers by."""
        if self.own_credentials is None:
            raise InvariantError("a worker that stands alone has no peers")
        return self.own_credentials

    @property
    def lease_s(self) -> float:
        return self.config.lease_s


class RoleService(Protocol):
    """The prefill or the decode service. Every method is called on the asyncio thread."""

    def on_batch(self, batch: EventBatch) -> None:
        """Take what the engine reports."""
        ...

    def on_end(self, error: StoppedError) -> None:
        """End every request, and those that still come, with the reason why the process ends."""
        ...

    def add_to(self, server: aio.Server) -> None: ...

    @property
    def busy(self) -> int:
        """Number of requests that a drain waits for."""
        ...

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        """Return the workers that a stream is open with."""
        ...

    def channels(self) -> dict[str, str]:
        """Return each peer's chosen channel and the reason, by the peer's worker id."""
        ...

    def links(self) -> dict[str, float]:
        """Return the bandwidth to each peer to which state was written, in bytes a second."""
        ...

    def hand_over(self, why: str) -> None:
        """End the requests that are left, so that other workers continue them."""
        ...

    async def close(self) -> None:
        """End every stream, request and transfer."""
        ...
