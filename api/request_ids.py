"""The header `X-Request-Id`: a client's own name for its request, which every reply repeats."""

import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import QUIET, CallLog, keep_record
from baton.api.errors import ANTHROPIC_PATH, shorten
from baton.api.fields.ignored import IGNORED_HEADER, ignored_in, ignored_value
from baton.api.replies import error_response
from baton.api.request_headers import RequestHeaders, headers_in
from baton.api.requests import new_request_id
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

HEADER = "x-request-id"
_VALID = re.compile(r"[!-~]{1,128}")
_HEADER, _IGNORED = HEADER.encode(), IGNORED_HEADER.encode()
SYNTHETIC_HEADER = "x-baton-synthetic-acceptance"
"""The header of replies of a server whose answers are not its model's."""
_SYNTHETIC = SYNTHETIC_HEADER.encode()
_REPLIED = "baton.replied"
"""The place of an ASGI scope that is taken once its reply has begun."""
_FAULT = ApiError(ErrorCode.INTERNAL, "a fault of the server; its log says more")
MAX_PATH_CHARS = 128
"""The most characters of a path in the log."""


class RequestIds:
    """An ASGI application that gives each request an id, which its reply has in the header, beside
    the names of what was left out of it. A fault behind it is answered with 500.

    The id is the client's, or 32 hex digits. A client's id that is not 1 to 128 visible ASCII
    characters is answered with 400: it would stand in logs.
    """

    def __init__(
        self,
        app: ASGIApp,
        calls: CallLog | None = None,
        metrics: ClientMetrics | None = None,
        refusal: Callable[[RequestHeaders], ApiError | None] = lambda _: None,
        synthetic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """calls: where each request is logged; None: nowhere. metrics: where what is left out of
        requests is counted. refusal: returns the error for a request that goes no further.
        synthetic: see `make_app`."""
        self._synthetic = synthetic
        self._app = app
        self._calls = calls
        self._metrics = metrics
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = headers_in(scope)
        given = headers.get(HEADER)
        wrong = given is not None and not _VALID.fullmatch(given)
        found = new_request_id() if given is None or wrong else given
        record = None
        if self._calls is not None:
            call = f"{scope['method']} {scope['path'][:MAX_PATH_CHARS]}"
            record = self._calls.begin(found, call, headers)
            keep_record(scope, record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[_REPLIED] = True
                if record is not None and not record.cut_off:
                    record.status = message["status"]
                message["headers"] = [*message["headers"], *self._added(scope, found)]
            await send(message)

        error = _invalid(given or "") if wrong else self._refusal(headers)
        app = self._app if error is None else error_response(error, scope["path"])
        try:
            await app(scope, receive, send_with_id)
        except Exception as fault:
            if record is not None and not record.cut_off:
                record.status, record.reason = 500, type(fault).__name__
            if not has_reply(scope):
                await error_response(_FAULT, scope["path"])(scope, receive, send_with_id)
            raise  # for the server's log: the client sees no internals
        finally:
            if record is not None and self._calls is not None:
                self._calls.end(record, quiet=scope["path"] in QUIET)

    def _added(self, scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
        """Return the headers that a reply has besides its own."""
        given = request_id.encode()
        added = [(_HEADER, given)]
        if scope["path"].startswith(ANTHROPIC_PATH):
            added.append((b"request-id", given))  # where Anthropic's clients look for it
        if length := self._synthetic():
            added.append((_SYNTHETIC, f"{length:g}".encode()))
        if names := ignored_in(scope):
            added.append((_IGNORED, ignored_value(names).encode()))
            if self._metrics is not None:
                self._metrics.ignored(names)
        return added


def has_reply(scope: Scope) -> bool:
    """Return True once the reply of a request behind `RequestIds` has begun."""
    return _REPLIED in scope


def id_in_headers(headers: Sequence[tuple[bytes, bytes]] | None) -> str:
    """Return the id for a request whose headers alone were read, maybe not all."""
    given = Headers(raw=list(headers or ())).get(HEADER)
    return given if given is not None and _VALID.fullmatch(given) else new_request_id()


def _invalid(given: str) -> ApiError:
    expected = "1 to 128 visible ASCII characters"
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"the header X-Request-Id is {shorten(repr(given))}; expected {expected}",
        param=HEADER,
        expected=expected,
        actual=shorten(repr(given)),
    )
