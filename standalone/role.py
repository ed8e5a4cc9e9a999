"""The role of a worker that answers clients by itself, alone or beside a role in a cluster."""

from grpc import aio

from baton.core.errors import StoppedError
from baton.proto import common_pb2
from baton.standalone.backend import StandaloneBackend
from baton.worker.context import RoleService
from baton.worker.engine_port import EventBatch


class StandaloneRole:
    """A `RoleService` in which clients and `inner`'s hand-offs, if any, share one engine."""

    def __init__(self, backend: StandaloneBackend, inner: RoleService | None) -> None:
        self._backend = backend
        self._inner = inner

    def add_to(self, server: aio.Server) -> None:
        if self._inner is not None:
            self._inner.add_to(server)

    @property
    def busy(self) -> int:
        return self._backend.busy + (self._inner.busy if self._inner is not None else 0)

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        return self._inner.peers() if self._inner is not None else []

    def channels(self) -> dict[str, str]:
        return self._inner.channels() if self._inner is not None else {}

    def links(self) -> dict[str, float]:
        return {}

    def on_batch(self, batch: EventBatch) -> None:
        self._backend.on_batch(batch)
        if self._inner is not None:
            self._inner.on_batch(batch)

    def on_end(self, error: StoppedError) -> None:
        self._backend.on_end(error)
        if self._inner is not None:
            self._inner.on_end(error)

    def hand_over(self, why: str) -> None:
        if self._inner is not None:
            self._inner.hand_over(why)

    async def close(self) -> None:
        self._backend.close()
        if self._inner is not None:
            await self._inner.close()
