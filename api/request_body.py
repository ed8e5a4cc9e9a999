"""Reading a request's body within a limit, and the labels in its headers."""

import time
from dataclasses import dataclass
from typing import Self

from starlette.requests import ClientDisconnect, Request

from baton.api.access.access import owner_in, owner_of
from baton.api.access.client_limits import client_of
from baton.api.backend import Backend
from baton.api.call_log import record_in
from baton.api.deadline import Deadline
from baton.api.disconnect import unless_disconnected
from baton.api.fields.ignored import keep_ignored
from baton.api.fields.left_out_log import LeftOutLog
from baton.api.fields.request_fields import UnknownFields
from baton.api.large.held_bytes import BodyFile
from baton.api.large.job import ParseJob
from baton.api.large.requests import LargeRequests
from baton.api.request_headers import headers_in
from baton.api.request_ids import HEADER
from baton.api.requests import RequestLabels
from baton.api.schema import BodyT, SamplingBody, parse_body
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

_ARRIVED = "baton.arrived"
"""The place of an ASGI scope for the time at which its request came, on `time.monotonic`."""
LARGE_BYTES = 1 << 16
"""Larger bodies are parsed in a process of their own: a parser holds the interpreter lock."""


@dataclass(frozen=True)
class BodyReader:
    """The reader of all bodies of one server."""

    max_bytes: int
    backend: Backend
    large: LargeRequests | None  # None: every body is parsed here
    left_out: LeftOutLog
    unknown: UnknownFields = UnknownFields.WARN

    async def read(self, request: Request, kind: type[BodyT]) -> BodyT:
        """Return the body. A large one has no prompts, but what was `prepared` of them. Its labels
        are in the record of its call.

        Raises `ApiError` that names what is wrong with it, and `ClientGone`.
        """
        body = await self._read(request, kind)
        notes = body.notes
        if notes.ignored:
            keep_ignored(request.scope, notes.ignored)
            if self.unknown is UnknownFields.WARN:
                self.left_out.add(notes.ignored, _client(request))
        if notes.labels and (record := record_in(request.scope)) is not None:
            record.labels = notes.labels
        return body

    async def _read(self, request: Request, kind: type[BodyT]) -> BodyT:
        request.scope[_ARRIVED] = time.monotonic()
        parts: list[bytes] = []
        size = 0
        chunks = BodyParts(request, self.max_bytes)
        async for part in chunks:
            parts.append(part)
            size += len(part)
            if size > LARGE_BYTES and self.large is not None:
                with self.large.open(_holders(request)) as file:
                    for each in parts:
                        file.write(each)
                    parts.clear()
                    async for each in chunks:
                        file.write(each)
                        await self.large.pace.took(len(each))
                    parse = self._parse(self.large, kind, file, owner_of(request))
                    return await unless_disconnected(request.scope, request.receive, parse)
        return parse_body(kind, b"".join(parts), self.unknown)

    async def _parse(
        self, large: LargeRequests, kind: type[BodyT], file: BodyFile, owner: str | None
    ) -> BodyT:
        job = ParseJob(kind, self.unknown, await self.backend.models(), owner)
        found = await large.parse(job, file)
        assert isinstance(found.body, kind)
        return found.body.with_prepared(found.prepared)


class BodyParts:
    """An iterator of a body as it comes. Raises TOO_LARGE as soon as it is known to exceed `limit`
    bytes, and ClientDisconnect. An object, because each generator costs the event loop two calls.
    """

    def __init__(self, request: Request, limit: int) -> None:
        declared = headers_in(request.scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        self._receive = request.receive
        self._limit = self._left = limit
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._more:
            raise StopAsyncIteration
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._left -= len(part)
        if self._left < 0:
            raise _too_large(self._limit)
        return part


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body. Raises TOO_LARGE as soon as it is known to exceed `limit` bytes."""
    return b"".join([part async for part in BodyParts(request, limit)])


def deadline_of(request: Request, timeout_s: float | None) -> Deadline | None:
    """Return the deadline of a request whose body was read. Raises `ApiError` as `Deadline.of`
    does."""
    if timeout_s is None:
        return None
    return Deadline.of(timeout_s, arrived=request.scope[_ARRIVED])


def labels_of(
    request: Request, body: SamplingBody, deadline: Deadline | None = None
) -> RequestLabels:
    """Return the request's labels. The caller's own id is X-Request-Id, else the body's."""
    return RequestLabels(
        headers_in(request.scope).get(HEADER) or body.client_id,
        body.priority or 0,
        body.dp_rank,
        owner_in(request.scope),
        body.salt,
        deadline,
        record_in(request.scope),
        body.explain,
    )


def _holders(request: Request) -> set[str]:
    """Return the names under which the bytes of a request's body are counted."""
    owner = owner_of(request)
    return {_address(request)} | (set() if owner is None else {f"key {owner}"})


def _client(request: Request) -> str:
    """Return the name of a request's key, or of its address where it has none."""
    owner = owner_of(request)
    return _address(request) if owner is None else f"key {owner}"


def _address(request: Request) -> str:
    return f"address {'' if request.client is None else client_of(request.client.host)}"


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.TOO_LARGE,
        f"the body is larger than {limit} bytes; send a shorter prompt",
        expected=f"at most {limit} bytes",
    )
