"""Emptying the prefix caches of all workers."""

import asyncio
import time
from collections.abc import Sequence

import grpc

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import FlushCacheRequest
from baton.router.cluster_view.worker_table import Worker
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.errors import error_from_proto

GRACE_S = 1.0
"""The time that an answer may take beyond the timeout that the worker was given."""


async def flush_all(
    workers: Sequence[Worker], timeout_s: float, salts: bytes, credentials: Credentials
) -> None:
    """Flush all workers at once. When all have answered, raise the first failure in the table's
    order.

    salts: the beginning of those of which alone all is removed; b"": of all. That is done twice: a
    worker may lend another a prefix which has been removed there, and not yet where it comes from.
    """
    ends = time.monotonic() + timeout_s
    for _ in range(2 if salts else 1):
        left_s = max(0.0, ends - time.monotonic())
        each = (_flush(worker, left_s, salts, credentials) for worker in workers)
        for failure in await asyncio.gather(*each):
            if failure is not None:
                raise failure


async def _flush(
    worker: Worker, timeout_s: float, salts: bytes, credentials: Credentials
) -> ApiError | None:
    async with credentials.dial_worker(worker.identity, OPTIONS) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        request = FlushCacheRequest(timeout_ms=round(timeout_s * 1000), salts=salts)
        try:
            reply = await stub.FlushCache(request, timeout=timeout_s + GRACE_S)
        except grpc.aio.AioRpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return ApiError(
                ErrorCode.DEADLINE_EXCEEDED if late else ErrorCode.UNAVAILABLE,
                f"{worker.worker_id} did not flush its cache: {error.details()}",
                origin=worker.worker_id,
            )
    return error_from_proto(reply.error) if reply.HasField("error") else None
