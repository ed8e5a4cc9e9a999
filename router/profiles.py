"""Profiles of all workers at once: `POST /start_profile` and `/stop_profile`, SGLang's names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.api.body import RequestBody
from baton.api.errors import refused
from baton.api.request_body import read_body
from baton.api.schema import parse_body
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import (
    StartProfileReply,
    StartProfileRequest,
    StopProfileReply,
    StopProfileRequest,
)
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.errors import error_from_proto

START_S = 20.0
"""The time that a worker has to begin: its engine ends the step under way first."""
WRITE_S = 300.0
"""The time that a worker has to end a profile and write it."""
MAX_MS = 2**32 - 1
MAX_BODY_BYTES = 1 << 16

Reply = TypeVar("Reply", StartProfileReply, StopProfileReply)


class ProfileBody(RequestBody):
    num_steps: int = 50
    timeout_s: float = 10.0
    with_stack: bool = False
    record_shapes: bool = False
    workers: list[str] | None = None  # worker ids; None: all
    activities: list[Literal["CPU", "GPU"]] | None = None  # SGLang's; all that there are, always
    output_dir: str | None = None


class ProfileEndpoints:
    """The handlers. Workers that a call does not name are left alone."""

    def __init__(self, table: WorkerTable, credentials: Credentials) -> None:
        self._table = table
        self._credentials = credentials

    async def start(self, request: Request) -> Response:
        """Start a profile on every worker, or on those named.

        If one of them cannot start, those that could are stopped again.
        """
        body = await _body(request)
        wanted = StartProfileRequest(
            steps=int(_bounded("num_steps", body.num_steps, MAX_MS)),
            timeout_ms=round(_bounded("timeout_s", body.timeout_s, MAX_MS / 1000) * 1000),
            with_stack=body.with_stack,
            record_shapes=body.record_shapes,
        )
        workers = self._workers(body.workers)
        started = await self._ask(
            workers, lambda stub: stub.StartProfile(wanted, timeout=START_S), StartProfileReply
        )
        failed = next((reply for reply in started if isinstance(reply, ApiError)), None)
        if failed is not None:
            begun = [w for w, reply in zip(workers, started, strict=True)
                     if not isinstance(reply, ApiError)]  # fmt: skip
            await self._stop(begun)
            raise failed
        return JSONResponse({"workers": [worker.worker_id for worker in workers]})

    async def stop(self, request: Request) -> Response:
        """End the profiles and return each worker's file, once all are written."""
        workers = self._workers((await _body(request)).workers)
        replies = await self._stop(workers)
        failed = [reply for reply in replies if isinstance(reply, ApiError)]
        if len(failed) == len(replies):
            raise failed[0]
        return JSONResponse(
            {
                "workers": [
                    {"worker_id": worker.worker_id, **_shown(reply)}
                    for worker, reply in zip(workers, replies, strict=True)
                ]
            }
        )

    def _workers(self, names: Sequence[str] | None) -> list[Worker]:
        """Return the workers of these ids. Raises `ApiError` for an unknown one, or for none."""
        present = self._table.workers()
        known = {worker.worker_id: worker for worker in present}
        for name in names or ():
            if name not in known:
                raise refused(
                    "workers", f"no worker is {name[:80]!r}; expected some of {', '.join(known)}"
                )
        chosen = present if names is None else [known[name] for name in names]
        if not chosen:
            raise ApiError(ErrorCode.UNAVAILABLE, "there is no worker to profile")
        return chosen

    async def _stop(self, workers: Sequence[Worker]) -> list[StopProfileReply | ApiError]:
        request = StopProfileRequest()
        return await self._ask(
            workers, lambda stub: stub.StopProfile(request, timeout=WRITE_S), StopProfileReply
        )

    async def _ask(
        self,
        workers: Sequence[Worker],
        call: Callable[[worker_pb2_grpc.WorkerStub], Awaitable[Any]],
        kind: type[Reply],
    ) -> list[Reply | ApiError]:
        """Call all workers at once. Return each one's reply, or why there is none."""

        async def one(worker: Worker) -> Reply | ApiError:
            async with self._credentials.dial_worker(worker.identity, OPTIONS) as channel:
                try:
                    reply = await call(worker_pb2_grpc.WorkerStub(channel))
                except grpc.aio.AioRpcError as error:
                    return ApiError(
                        ErrorCode.UNAVAILABLE,
                        f"{worker.worker_id} did not answer: {error.details()}",
                        origin=worker.worker_id,
                    )
            assert isinstance(reply, kind)
            return error_from_proto(reply.error) if reply.HasField("error") else reply

        return list(await asyncio.gather(*map(one, workers)))


def profile_routes(table: WorkerTable, credentials: Credentials) -> list[BaseRoute]:
    """Return the two routes."""
    profiles = ProfileEndpoints(table, credentials)
    return [
        Route("/start_profile", profiles.start, methods=["POST"]),
        Route("/stop_profile", profiles.stop, methods=["POST"]),
    ]


async def _body(request: Request) -> ProfileBody:
    """Return the body; an empty one has the defaults. Raises `ApiError`."""
    body = parse_body(ProfileBody, await read_body(request, MAX_BODY_BYTES) or b"{}")
    if body.output_dir is not None:
        raise refused(
            "output_dir",
            "output_dir is not supported: the folder is that of `baton serve --profile-folder`; "
            "leave it out, and read the files' paths in the reply of /stop_profile",
        )
    return body


def _bounded(name: str, value: float, most: float) -> float:
    """Return a number that the message can carry; the workers check their own bounds."""
    if not 0 <= value <= most:
        raise refused(name, f"{name} is {value:g}; expected 0 to {most:g}")
    return value


def _shown(reply: StopProfileReply | ApiError) -> dict[str, object]:
    if isinstance(reply, ApiError):
        return {"error": reply.message}
    return {"file": reply.file, "steps": reply.steps, "bytes": reply.bytes}
