"""`POST /control`: requests for whoever runs this router's cluster, passed on to its socket.

The body is one request of the control socket, and the reply is that socket's: lines of JSON with
progress, then one with the answer or an error.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

SILENCE_S = 900.0
"""Longest wait between two lines of the reply: a worker's start, or a drain."""
_ON_ITS_MACHINE = ("apply",)
MAX_REQUEST_BYTES = 1 << 16


def control_routes(socket: Path | None, *, keys: bool) -> list[BaseRoute]:
    """Return the route of `/control`.

    socket: of whoever runs the cluster; None: nobody does. keys: the router asks for API keys.
    """

    async def control(request: Request) -> Response:
        if socket is None:
            raise ApiError(
                ErrorCode.CONFLICT,
                "nobody runs this router's cluster: its processes were started by hand",
            )
        if not keys:
            raise ApiError(
                ErrorCode.PERMISSION_DENIED,
                "a cluster is changed over the network with an API key of scope admin alone: start "
                "it with --api-keys, or use --cluster NAME on the machine where it runs",
            )
        line = await _line_of(request)
        _check_name(line)
        return StreamingResponse(_pass_on(socket, line), media_type="application/x-ndjson")

    return [Route("/control", control, methods=["POST"])]


async def _line_of(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_REQUEST_BYTES:
            raise ApiError(
                ErrorCode.TOO_LARGE, f"the request has more than {MAX_REQUEST_BYTES:,} bytes"
            )
    return body.replace(b"\n", b" ") + b"\n"


def _check_name(line: bytes) -> None:
    """Raise ApiError for a request that names files of this machine. Whoever runs the cluster
    refuses a line that is no request.
    """
    try:
        name = json.loads(line)["request"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    if name in _ON_ITS_MACHINE:
        raise ApiError(
            ErrorCode.PERMISSION_DENIED,
            f"{name} is not taken over the network, since it may name files; use --cluster NAME on "
            "the machine where the cluster runs",
        )


async def _pass_on(socket: Path, line: bytes) -> AsyncIterator[bytes]:
    """Yield the lines of the reply. A supervisor that is away ends them early."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        yield b'{"error": "the supervisor does not answer; Ray may be starting it again"}\n'
        return
    try:
        writer.write(line)
        await writer.drain()
        while True:
            async with asyncio.timeout(SILENCE_S):
                found = await reader.readline()
            if not found:
                return
            yield found
    finally:
        writer.close()
