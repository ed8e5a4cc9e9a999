"""Server-sent events as OpenAI's and Anthropic's clients read them."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.api.disconnect import ClientGone, unless_disconnected
from baton.api.errors import openai_error
from baton.core.errors import ApiError
from baton.core.supervised import child

_UNICODE_LINE_ENDS = re.compile(b"\xc2\x85|\xe2\x80[\xa8\xa9]")

DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
"""The ping of a silent stream: a line that clients of server-sent events leave out."""
Json = Mapping[str, Any] | bytes
"""Values of JSON, or the bytes of its text."""
Encode = Callable[[Any], bytes]

PARTS = "baton.parts"
"""The key of a server's `PartWriter` in `extensions` of an ASGI scope."""


class PartWriter(Protocol):
    """A server's way to send parts of a response that has begun, past all middleware.

    A part takes six calls through the middleware, none of which does anything for it: all act on
    the start of a response alone.
    """

    @property
    def paused(self) -> bool:
        """True while the client reads too slowly."""
        ...

    async def resumed(self) -> None:
        """Wait until `paused` is False, or the connection is lost."""
        ...

    def write(self, part: bytes) -> None:
        """Send a part, which is not empty and not the last. Does nothing if the client is gone."""
        ...


def event(data: Json, head: bytes = b"") -> bytes:
    """Return one `data:` event, behind `head`. Its JSON is one line for every client.

    JSON escapes carriage returns and newlines, which are all that ends a line of an event. But
    clients that read lines by Python's `str.splitlines`, as `httpx.Response.iter_lines` does, end
    them at U+0085, U+2028 and U+2029 too.
    """
    text = data if isinstance(data, bytes) else orjson.dumps(data)
    if b"\xc2\x85" in text or b"\xe2\x80" in text:
        text = _UNICODE_LINE_ENDS.sub(_escaped, text)
    return b"%bdata: %b\n\n" % (head, text)


def named_event(data: Mapping[str, Any]) -> bytes:
    """Return one event that `data`'s `type` names."""
    return event(data, b"event: %b\n" % str(data["type"]).encode())


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())


def openai_failure(error: ApiError) -> Iterable[Json]:
    """Return the events of a stream of OpenAI's that failed."""
    return [openai_error(error)]


class EventStream(Response):
    """A response that sends each chunk as an event, and then `last`.

    Its status line is sent with the first chunk, or with the first ping of a stream that is silent
    until then. An error before that is raised, and the application gives it an HTTP status. A
    later error is sent as the events that `failure` makes.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[Json, None],
        *,
        ping_s: float,
        encode: Encode = event,
        failure: Callable[[ApiError], Iterable[Json]] = openai_failure,
        last: bytes = DONE,
        ping: bytes = COMMENT,
    ) -> None:
        """
        ping_s: the silence after which `ping` is sent, again and again; 0: never.
        encode: makes an event's bytes.
        """
        # Proxies that buffer or rewrite a stream would spoil its timing.
        quiet = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=quiet)
        del self.headers["content-length"]
        self._chunks = chunks
        self._encode = encode
        self._failure = failure
        self._last = last
        self._ping = ping
        self._ping_s = ping_s
        self._begun = False
        self._beginning = asyncio.Lock()
        self._last_sent_s = 0.0  # by the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            parts = scope.get("extensions", {}).get(PARTS)
            await unless_disconnected(scope, receive, self._send_all(send, parts))
        except ClientGone:
            return

    async def _send_all(self, send: Send, parts: PartWriter | None) -> None:
        self._last_sent_s = asyncio.get_running_loop().time()
        pings = child(self._break_silence(send)) if self._ping_s else None
        try:
            async with aclosing(self._chunks) as chunks:
                await self._send_chunks(chunks, send, parts)
        finally:
            if pings is not None:
                pings.cancel()
                # A ping that is half sent must not come behind the last part.
                await asyncio.gather(pings, return_exceptions=True)
        await _send_part(send, self._last, last=True)

    async def _send_chunks(
        self, chunks: AsyncGenerator[Json, None], send: Send, parts: PartWriter | None
    ) -> None:
        clock, encode = asyncio.get_running_loop().time, self._encode
        try:
            first = await anext(chunks)
            await self._begin(send)
            await _send_part(send, encode(first))
            self._last_sent_s = clock()
            async for chunk in chunks:
                self._last_sent_s = clock()
                if parts is None:
                    await _send_part(send, encode(chunk))
                    continue
                if parts.paused:
                    await parts.resumed()
                parts.write(encode(chunk))
        except ApiError as err:
            if not self._begun:
                raise
            await self._begin(send)  # a ping may be about to
            for each in self._failure(err):
                await _send_part(send, encode(each))

    async def _begin(self, send: Send) -> None:
        """Send the status line, unless it was sent."""
        async with self._beginning:
            if not self._begun:
                self._begun = True
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)

    async def _break_silence(self, send: Send) -> None:
        """Send a ping after each `ping_s` in which nothing was sent."""
        clock = asyncio.get_running_loop().time
        while True:
            silent_s = clock() - self._last_sent_s
            if silent_s < self._ping_s:
                await asyncio.sleep(self._ping_s - silent_s)
                continue
            await self._begin(send)
            await _send_part(send, self._ping)
            self._last_sent_s = clock()


async def _send_part(send: Send, body: bytes, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})
