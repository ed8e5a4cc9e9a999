"""The header `X-Request-Id`: a client's own name for its request, which every reply repeats."""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import QUIET, CallLog, keep_record
from baton.api.errors import ANTHROPIC_PATH, shorten
from baton.api.fields.ignored import IGNORED_HEADER, ignored_in, ignored_value
from baton.api.replies import error_response
from baton.api.requests import new_request_id
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

HEADER = "x-request-id"
_VALID = re.compile(r"[!-~]{1,128}")
_ID = "baton.request_id"
"""The place of an ASGI scope for its request's id."""
MAX_PATH_CHARS = 128
"""The most characters of a path in the log."""


class RequestIds:
    """An ASGI application that gives each request an id, which its reply has in the header, beside
    the names of what was left out of it.

    The id is the client's, or 32 hex digits. A client's id that is not 1 to 128 visible ASCII
    characters is answered with 400: it would stand in logs.
    """

    def __init__(
        self, app: ASGIApp, calls: CallLog | None = None, metrics: ClientMetrics | None = None
    ) -> None:
        """calls: where each request is logged; None: nowhere. metrics: where what is left out of
        requests is counted."""
        self._app = app
        self._calls = calls
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        wrong = given is not None and not _VALID.fullmatch(given)
        found = new_request_id() if given is None or wrong else given
        scope[_ID] = found
        record = None
        if self._calls is not None:
            call = f"{scope['method']} {scope['path'][:MAX_PATH_CHARS]}"
            record = self._calls.begin(found, call, Headers(scope=scope))
            keep_record(scope, record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                if record is not None and not record.cut_off:
                    record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = found
                if scope["path"].startswith(ANTHROPIC_PATH):
                    headers["request-id"] = found  # where Anthropic's clients look for it
                if names := ignored_in(scope):
                    headers[IGNORED_HEADER] = ignored_value(names)
                    if self._metrics is not None:
                        self._metrics.ignored(names)
            await send(message)

        app = error_response(_invalid(given or ""), scope["path"]) if wrong else self._app
        try:
            await app(scope, receive, send_with_id)
        except Exception as error:
            if record is not None and not record.cut_off:
                record.status, record.reason = 500, type(error).__name__
            raise
        finally:
            if record is not None and self._calls is not None:
                self._calls.end(record, quiet=scope["path"] in QUIET)


def request_id_of(scope: Scope) -> str:
    """Return the id that `RequestIds` gave the request."""
    found: str = scope.get(_ID) or new_request_id()
    return found


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
