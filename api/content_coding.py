"""Bodies that clients send compressed."""

import asyncio
import zlib

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from baton.api.access.browser_guard import has_body
from baton.api.errors import invalid
from baton.api.replies import ErrorReply, error_response
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

GZIP = {"gzip", "x-gzip"}
CODED = {b"transfer-encoding", b"content-encoding"}
"""The headers of a body that `decoded` has to look at."""
_OF_BYTES = {b"content-encoding", b"content-length"}
PART_BYTES = 1 << 16
"""The most bytes that come out at once."""
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # a gzip header and trailer, no other


def decoded(
    scope: Scope, headers: Headers, receive: Receive, max_bytes: int
) -> Receive | ErrorReply:
    """Return a `receive` that decodes a gzip body, or the reply to one of another coding: 415.

    What comes out is bounded by whoever reads the body: it is made as it is read. What goes in has
    the same bound here. A scope whose body is decoded loses the headers that describe its bytes.
    """
    transfer = _listed(headers, "transfer-encoding")
    if transfer not in ("", "chunked"):
        reply = error_response(_unknown("transfer-encoding", transfer, "chunked"), scope["path"])
        reply.status_code = 501
        return reply
    coding = _listed(headers, "content-encoding")
    if coding in ("", "identity") or not has_body(headers):
        return receive
    if coding in GZIP:
        body = _GzipBody(receive, max_bytes)
        scope["headers"] = [each for each in scope["headers"] if each[0] not in _OF_BYTES]
        return body.receive
    reply = error_response(_unknown("content-encoding", coding, "gzip"), scope["path"])
    reply.status_code = 415
    reply.headers["accept-encoding"] = "gzip"
    return reply


class _GzipBody:
    """The body of one request. `receive` raises `ApiError` for what is no gzip."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._left = max_bytes
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        self._rest = b""  # was received and not yet decoded
        self._pending = False  # more comes out of what was received
        self._more = True  # more is to be received
        self._over = False

    async def receive(self) -> Message:
        while not self._over:
            if not self._pending:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
            part = self._decode()
            self._over = not self._more and not self._pending
            if self._over and not self._decoder.eof:
                raise _broken("it ends too early")
            if part or self._over:
                await asyncio.sleep(0)  # others go on between the parts of what is large
                return {"type": "http.request", "body": part, "more_body": not self._over}
        return await self._receive()

    def _take(self, message: Message) -> None:
        self._rest = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._left -= len(self._rest)
        if self._left < 0:
            raise ApiError(ErrorCode.TOO_LARGE, "the compressed body is too large; send less")

    def _decode(self) -> bytes:
        try:
            part = self._decoder.decompress(self._rest, PART_BYTES)
        except zlib.error as error:
            raise _broken(str(error)) from error
        self._rest = self._decoder.unconsumed_tail
        # zlib may have read all and still hold a few bytes that found no place.
        held = len(part) == PART_BYTES and not self._decoder.eof
        self._pending = bool(self._rest) or held
        if self._decoder.unused_data:
            raise _broken("something follows its end")
        return part


def _listed(headers: Headers, name: str) -> str:
    """Return the codings of all headers of one name."""
    return ", ".join(headers.getlist(name)).strip().lower()


def _unknown(header: str, given: str, expected: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"the header {header} is {given[:80]!r}; expected {expected}, or none",
        param=header,
        expected=expected,
        actual=given[:80],
    )


def _broken(why: str) -> ApiError:
    return invalid("content-encoding", f"the body is no gzip: {why}")
