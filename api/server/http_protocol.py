"""uvicorn's HTTP protocol with deadlines and limits; its own are of idle connections alone."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from baton.api.access.client_limits import HEALTH, ClientLimits, Refusal
from baton.api.call_log import CallLog, record_in
from baton.api.disconnect import DEPARTURE
from baton.api.errors import too_many
from baton.api.replies import error_response
from baton.api.request_ids import HEADER, MAX_PATH_CHARS, RequestIds, id_in_headers
from baton.api.server.connection_table import GRACE_S, PLACE_S, Connection, ConnectionTable
from baton.api.server.cycle_departure import CycleDeparture
from baton.api.server.lingering_http import LingeringHttp
from baton.api.server.part_writer import CyclePartWriter
from baton.api.server.reply_transport import ReplyTransport
from baton.api.server.request_parser import RequestParser
from baton.api.sse import PARTS
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

MAX_HEADERS = 128
PROGRESS_BYTES = 16 << 10
"""A client that reads so much has another `write_s` to read on: a large reply takes its time."""
MAX_PIPELINED = 8
"""Requests that a connection may send ahead of their answers."""

log = logging.getLogger(__name__)
log.setLevel(logging.ERROR)  # uvicorn logs a warning a malformed request; they are counted here


_PIPELINE_FULL = too_many(
    ErrorCode.OVERLOADED,
    f"{MAX_PIPELINED} requests wait on this connection",
    f"{MAX_PIPELINED} requests",
)
_GAVE_WAY = too_many(
    ErrorCode.OVERLOADED,
    "this address has too many connections, and this one had no request",
    "a request within a fraction of a second",
)


class _Reading(Enum):
    """The part of a request that is read next."""

    NOTHING = auto()  # between requests
    HEADER = auto()
    BODY = auto()


class GuardedHttp(LingeringHttp):
    """One connection. `check` enforces its deadlines; the caller calls it every now and then.

    Large because most methods are names that asyncio, the parser or uvicorn calls.
    """

    def __init__(
        self,
        place: Connection,
        table: ConnectionTable,
        limits: ClientLimits,
        calls: CallLog | None = None,
        **given: Any,
    ) -> None:
        """calls: where refused requests are logged; None: nowhere."""
        super().__init__(**given)
        self.parser = RequestParser(self)  # type: ignore[assignment]  # it has what is called
        self.logger = log
        self.timeout_keep_alive = limits.idle_s  # type: ignore[assignment]  # any float will do
        self._place = place
        self._table = table
        self._limits = limits
        self._calls = calls
        self._reading = _Reading.HEADER
        self._since = time.monotonic()  # when `_reading` began
        self._unparsed = 0  # bytes that the parser may hold
        self._header_bytes = 0
        self._headers = 0
        self._deaf = False  # too many requests have come: no other is read
        self._closes = False  # when the request is read whose reply is written already
        self._refusal: tuple[Refusal, ApiError, int] | None = None  # raised inside the parser
        self._running: RequestResponseCycle | None = None
        self._departure: CycleDeparture | None = None  # of `_running`
        self._unread_since: float | None = None  # when the client ceased to read
        self._unread = 0  # bytes that it had not read then

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = time.monotonic()  # behind the TLS handshake
        self._table.served(self._place, self, self.give_way)
        if self._place.shed is not None:
            self.app = _Shedding(self.app, self._place.shed, self._calls, admit=self._admit)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.closed(self._place)
        super().connection_lost(exc)
        running = self._running  # uvicorn tells the newest request only
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        if self._departure is not None:
            self._departure.told()

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self.drop(len(data))
            return
        if self._deaf and self._reading is not _Reading.BODY:
            return
        if self._reading is _Reading.NOTHING:
            self._enter(_Reading.HEADER)
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse(*_oversized(self._limits))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._headers = 0
        self._enter(_Reading.HEADER)

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._count_header(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        if self._deaf:
            raise _PIPELINE_FULL  # ends the parser
        app = self.app
        if len(self.pipeline) >= MAX_PIPELINED:  # its refusal comes after their answers
            self._deaf = True
            self._table.refused(Refusal.PIPELINE)
            self.app = _Shedding(app, _PIPELINE_FULL, self._calls, but="")
        super().on_headers_complete()
        self.app = app
        if self.cycle is not self._running and not self._deaf:
            self.flow.resume_reading()  # else nobody hears the end of who waits for two answers
        if self._deaf or self._place.shed is not None:
            self.cycle.keep_alive = False
        self._table.busy(self._place)
        self._enter(_Reading.BODY)

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = self._header_bytes = 0
        super().on_message_complete()
        self._enter(_Reading.NOTHING)
        if self._closes:
            self.transport.close()

    # What uvicorn calls

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running, self._departure = cycle, CycleDeparture(cycle)
        extensions: dict[str, Any] = {DEPARTURE: self._departure}
        if cycle.scope["method"] != "HEAD":  # its reply has no body
            extensions[PARTS] = CyclePartWriter(cycle)
        cycle.scope["extensions"] = extensions
        end = ReplyTransport(self.transport, partial(self._close_behind, cycle))
        cycle.transport = end  # type: ignore[assignment]  # it has what is called
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering:
            self._table.idle(self._place)

    def _close_behind(self, cycle: RequestResponseCycle) -> None:
        """Close the connection behind its last reply, once that one's request has been read.

        What is left of it is dropped, for as long as a body may take.
        """
        reading = self._reading is _Reading.BODY and cycle is self.cycle
        if not reading or not cycle.response_complete or self.transport.is_closing():
            self.transport.close()
            return
        self._closes = True
        if self.transport.can_write_eof():  # TLS cannot; its client goes by the header
            self.transport.write_eof()

    def send_400_response(self, msg: str) -> None:
        if self._closes:
            self.transport.close()
        if self._deaf or self._closes:
            return
        malformed = ApiError(ErrorCode.INVALID_REQUEST, "this is no HTTP request")
        self._refuse(*(self._refusal or (Refusal.MALFORMED, malformed, 400)))

    def give_way(self) -> None:
        """Close an idle connection. If nothing was asked on it, say why: its request may be on the
        way."""
        told = self._running is None and not (self.lingers or self.transport.is_closing())
        if told:
            error = self._place.shed or _GAVE_WAY
            self.transport.write(_reply(error, error.status.http, b"", id_in_headers(None)))
        self._table.lingers(self._place, self)
        self.linger()
        if not told:
            self.transport.close()

    def is_writing(self) -> bool:
        """Return True while the client has not read its last answer."""
        return bool(self.transport.get_write_buffer_size())

    # Deadlines

    def check(self) -> None:
        """End the connection if one of its deadlines has passed."""
        now, limits = time.monotonic(), self._limits
        closing = self.lingers or self.transport.is_closing()
        if closing and self._unread_since is None:
            self._watch_reader()
        if self._unread_since is not None and self._is_stuck(now):
            self._abort(Refusal.SLOW_READER)
        elif closing:
            return
        elif self._waits_for_answers:
            self._since = now
        elif self._reading is _Reading.HEADER and now - self._since > limits.header_s:
            self._refuse(*_late(Refusal.HEADER_TIME, "header", limits.header_s))
        elif self._reading is _Reading.BODY and now - self._since > limits.body_s:
            self._refuse(*_late(Refusal.BODY_TIME, "body", limits.body_s))

    @property
    def _answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    @property
    def _waits_for_answers(self) -> bool:
        """Return True while a request is read, or not read further, behind an unfinished answer."""
        behind = self._reading is not _Reading.BODY or self.cycle is not self._running
        return self._answering and behind

    def _watch_reader(self) -> None:
        self._unread_since = time.monotonic()
        self._unread = self.transport.get_write_buffer_size()

    def _is_stuck(self, now: float) -> bool:
        """Return True if the client has read too little for too long."""
        if self.transport.get_write_buffer_size() <= self._unread - PROGRESS_BYTES:
            self._watch_reader()
        return now - (self._unread_since or now) > self._limits.write_s

    def _enter(self, reading: _Reading) -> None:
        self._reading = reading
        self._since = time.monotonic()

    # Refusals

    async def _admit(self) -> bool:
        """Wait for a place while connections without a request may give way. In a burst, those that
        will never ask anything have all places until they had their time to."""
        until = time.monotonic() + GRACE_S
        while not (admitted := self._table.admit(self._place)):
            if time.monotonic() >= until or not self._table.may_admit(self._place):
                break
            await asyncio.sleep(PLACE_S)
        return admitted

    def _count_header(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > self._limits.header_bytes or self._headers > MAX_HEADERS:
            self._raise(*_oversized(self._limits))

    def _raise(self, reason: Refusal, error: ApiError, status: int) -> None:
        """Stop the parser, which then calls `send_400_response`."""
        self._refusal = (reason, error, status)
        raise error

    def _refuse(self, reason: Refusal, error: ApiError, status: int) -> None:
        """Answer with `error` if an answer can still be sent, and close the connection."""
        if self.lingers or self.transport.is_closing():
            return
        if not self._may_reply:
            self._abort(reason)
            return
        self._table.refused(reason)
        request_id = id_in_headers(self.headers)
        self._log(reason, status, request_id)
        path = self.url.partition(b"?")[0] if self.headers is not None else b""
        self.transport.write(_reply(error, status, path, request_id))
        if self._reading is _Reading.BODY:
            self.cycle.disconnected = True  # its application hears that the client is gone
            self.cycle.message_event.set()
        self.linger()

    @property
    def _may_reply(self) -> bool:
        """Return True if a reply to what is being read would be the next in its turn."""
        if self._reading is _Reading.BODY:
            return self.cycle is self._running and not self.cycle.response_started
        # Who has asked nothing yet may be busy with a burst of its own: its request is on its way.
        asked = self._running is None or self._unparsed or self._header_bytes
        return bool(asked) and not self._answering

    def _log(self, reason: Refusal, status: int, request_id: str) -> None:
        """Write the line of the request that is refused, or tell the record of the one under way.

        A connection on which nothing was asked leaves no line.
        """
        if self._answering and self._running is not None:
            if (record := record_in(self._running.scope)) is not None:
                record.refused(status or record.status, reason)
        elif self._calls is not None and (self._unparsed or self._header_bytes):
            call = "unread"
            if self._header_bytes and self.url:
                path = self.url.partition(b"?")[0][:MAX_PATH_CHARS].decode("ascii", "replace")
                call = f"{self.parser.get_method().decode('ascii')} {path}"
            headers = Headers(raw=list(self.headers or ()))
            self._calls.refused(request_id, call, headers, status, reason)

    def _abort(self, reason: Refusal) -> None:
        self._table.refused(reason)
        self._log(reason, 0, id_in_headers(self.headers))
        self.transport.abort()


class _Shedding:
    """An ASGI application that answers health alone, and `error` to everything else, unless there
    is a place for it after all."""

    def __init__(
        self,
        app: ASGIApp,
        error: ApiError,
        calls: CallLog | None,
        but: str = HEALTH,
        admit: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """but: the path that is answered. admit: waits for a place, and returns False where there
        is none; None: there is none."""
        self._but = but
        self._app = app
        self._error = error
        self._calls = calls
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply: ASGIApp = self._app
        if scope["path"] != self._but and not (self._admit and await self._admit()):
            reply = RequestIds(error_response(self._error, scope["path"]), self._calls)
        await reply(scope, receive, send)


def _oversized(limits: ClientLimits) -> tuple[Refusal, ApiError, int]:
    error = ApiError(
        ErrorCode.TOO_LARGE,
        f"the request's line and headers may have {limits.header_bytes} bytes and {MAX_HEADERS} "
        "headers; send fewer",
    )
    return Refusal.HEADER_SIZE, error, 431


def _late(reason: Refusal, part: str, limit_s: float) -> tuple[Refusal, ApiError, int]:
    error = ApiError(
        ErrorCode.DEADLINE_EXCEEDED,
        f"the request's {part} was not complete after {limit_s:g} s; send it faster",
    )
    return reason, error, 408


def _reply(error: ApiError, status: int, path: bytes, request_id: str) -> bytes:
    """Return a whole HTTP response to a request whose path was read so far."""
    response = error_response(error, path.decode("ascii", "replace"))
    response.headers[HEADER] = request_id
    lines = [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
    return b"".join(
        [STATUS_LINE[status], *lines, b"connection: close\r\n\r\n", bytes(response.body)]
    )
