"""The way of an HTTP request to its endpoint, in one pass, and what its errors become."""

from collections.abc import Awaitable, Callable, Iterable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.api.access.access import owner_in
from baton.api.access.browser_guard import not_json
from baton.api.backend import Backend
from baton.api.content_coding import CODED, decoded
from baton.api.disconnect import ClientGone
from baton.api.relative_redirects import RelativeRedirects
from baton.api.replies import ErrorReply, error_response
from baton.api.request_headers import headers_in
from baton.api.request_ids import has_reply
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

GENERATING = {
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate",
}  # fmt: skip
"""The paths whose requests the backend queues."""


class Dispatch:
    """An ASGI application that gives each request to its endpoint, unless it is refused.

    What refuses it is a plain call, not an application around the next one, which would cost a
    coroutine and a `send` of its own that each message passes.
    """

    def __init__(self, router: Router, max_body_bytes: int) -> None:
        self._router = router
        self._max_body_bytes = max_body_bytes
        self._endpoints: dict[tuple[str, str], ASGIApp] = {
            (route.path, method): route.app
            for route in reversed(router.routes)  # the first of a path is the last here
            if isinstance(route, Route) and not route.param_convertors
            for method in route.methods or ()
        }
        self._others = RelativeRedirects(router)  # paths with parameters, and what is no endpoint's

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        headers = headers_in(scope)
        found = not_json(scope, headers) or receive
        if found is receive and not headers.lacks(CODED):
            found = decoded(scope, headers, receive, self._max_body_bytes)
        if isinstance(found, ErrorReply):
            await found(scope, receive, send)
            return
        app = self._endpoints.get((scope["path"], scope["method"]), self._others)
        try:
            await app(scope, found, send)
        except HTTPException as error:  # an unknown path or method
            await _http_error(scope, error)(scope, receive, send)


class Endpoint:
    """An ASGI application that sends the reply of a handler, or that of the error it raises."""

    def __init__(
        self, handler: Callable[[Request], Awaitable[Response]], queue: Backend | None = None
    ) -> None:
        """queue: has room, or the body is not read; None: it needs none."""
        self._handler = handler
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._queue is not None:
                self._queue.check_room(owner_in(scope))
            reply = await self._handler(Request(scope, receive, send))
            await reply(scope, receive, send)
        except ApiError as error:
            if has_reply(scope):
                raise RuntimeError("an error came behind the start of its reply") from error
            await error_response(error, scope["path"])(scope, receive, send)
            error.__traceback__ = None  # one that is raised again would keep those of all requests
        except (ClientGone, ClientDisconnect):
            if not has_reply(scope):  # for the log alone: the client reads nothing
                gone = ApiError(ErrorCode.CANCELLED, "the client closed its connection")
                await error_response(gone)(scope, receive, send)


def serve_routes(routes: Iterable[BaseRoute], backend: Backend) -> None:
    """Let each route answer as an `Endpoint`; those that generate ask for room first."""
    for route in routes:
        if isinstance(route, Route):
            queue = backend if route.path in GENERATING else None
            route.app = Endpoint(route.endpoint, queue)


def _http_error(scope: Scope, error: HTTPException) -> ErrorReply:
    code = ErrorCode.NOT_FOUND if error.status_code == 404 else ErrorCode.INVALID_REQUEST
    message = f"{scope['method']} {scope['path']}: {error.detail}"
    reply = error_response(ApiError(code, message), scope["path"])
    reply.status_code = error.status_code
    reply.headers.update(error.headers or {})
    return reply
