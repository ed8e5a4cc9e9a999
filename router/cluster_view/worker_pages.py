"""The metrics of workers, which only the router may ask them for."""

import asyncio

import grpc

from baton.api.errors import RETRY_AFTER_S, shorten
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, PeerLostError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import MetricsRequest
from baton.router.cluster_view.worker_table import Change, WorkerTable
from baton.rpc.credentials import Credentials
from baton.rpc.peer_channels import PeerChannels

DEADLINE_S = 5.0
"""Prometheus waits 10 s by default; a reply with the reason tells its user more than silence."""

_MOST_NAMED = 32


class WorkerPages:
    """A reader of the workers' metrics. It keeps a connection to each worker that it has asked.

    The text is passed on as it is. It needs a running event loop.
    """

    def __init__(
        self,
        table: WorkerTable,
        credentials: Credentials,
        owner: ProcessSupervisor,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._owner = owner
        self._table = table
        self._deadline_s = deadline_s
        self._peers = PeerChannels(credentials)
        self._closing: set[asyncio.Task[None]] = set()
        table.subscribe(self._on_change)

    async def read(self, worker_id: str) -> bytes:
        """Return a worker's metrics in Prometheus' text format.

        Raises ApiError: NOT_FOUND for a worker that is not registered, UNAVAILABLE for one that
        does not answer.
        """
        worker = self._table.find(worker_id)
        if worker is None:
            raise ApiError(ErrorCode.NOT_FOUND, self._unknown(worker_id))
        try:
            stub = worker_pb2_grpc.WorkerStub(await self._peers.to(worker.identity))
            reply = await stub.Metrics(MetricsRequest(), timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            why = f"no answer within {self._deadline_s:g} s" if late else error.details()
            raise _unavailable(worker_id, why) from error
        except PeerLostError as error:
            raise _unavailable(worker_id, str(error)) from error
        text: bytes = reply.text
        return text

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._peers.close()

    def _unknown(self, worker_id: str) -> str:
        names = [worker.worker_id for worker in self._table.workers()]
        more = len(names) - _MOST_NAMED
        shown = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        asked = shorten(repr(worker_id))
        return f"no worker {asked} is registered here; registered: {shown or 'none'}"

    def _on_change(self, change: Change) -> None:
        if change.before is not None and change.after is None:
            worker_id = change.before.worker_id
            # ANEW: a connection that is closed already is closed again without effect.
            closing = spawn(
                lambda: self._peers.forget(worker_id),
                self._owner,
                OnFailure.ANEW,
                f"end of the connection to {worker_id}",
                may_return=True,
            )
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _unavailable(worker_id: str, why: str | None) -> ApiError:
    error = ApiError(
        ErrorCode.UNAVAILABLE, f"{worker_id} did not send its metrics: {why}", origin=worker_id
    )
    error.retry_after_s = RETRY_AFTER_S
    return error
