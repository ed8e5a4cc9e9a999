"""Reading a request's body within a limit, and the labels in its headers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.requests import Request

from baton.api.access import owner_of
from baton.api.request_fields import UnknownFields
from baton.api.request_ids import HEADER
from baton.api.requests import RequestLabels
from baton.api.schema import BodyT, SamplingBody, parse_body
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

INLINE_BYTES = 1 << 16
"""Larger bodies are parsed on a thread, where others can run between its parts."""


@dataclass(frozen=True)
class BodyReader:
    """The reader of all bodies of one server."""

    max_bytes: int
    unknown: UnknownFields = UnknownFields.REFUSE
    # One thread: many would take the interpreter lock from the event loop in turns.
    parser: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="parse")
    )

    async def read(self, request: Request, kind: type[BodyT]) -> BodyT:
        """Return the body. Raises `ApiError` that names what is wrong with it."""
        raw = await read_body(request, self.max_bytes)
        if len(raw) <= INLINE_BYTES:
            return parse_body(kind, raw, self.unknown)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.parser, parse_body, kind, raw, self.unknown)


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body. Raises TOO_LARGE as soon as it is known to exceed `limit` bytes."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def labels_of(request: Request, body: SamplingBody) -> RequestLabels:
    """Return the request's labels. The caller's own id is X-Request-Id, else the body's."""
    client_id = request.headers.get(HEADER) or body.client_id
    return RequestLabels(client_id, body.priority or 0, body.dp_rank, owner_of(request), body.salt)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.TOO_LARGE,
        f"the body is larger than {limit} bytes; send a shorter prompt",
        expected=f"at most {limit} bytes",
    )
