"""The bound on HTTP requests that are answered at once."""

from starlette.types import ASGIApp, Receive, Scope, Send

from baton.api.access.client_limits import HEALTH, ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import CallLog
from baton.api.errors import too_many
from baton.api.replies import error_response
from baton.api.request_ids import RequestIds
from baton.core.error_codes import ErrorCode


class StreamLimit:
    """An ASGI application that answers so many requests at once, and 429 to others.

    Health is always answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ClientLimits,
        metrics: ClientMetrics,
        calls: CallLog | None = None,
    ) -> None:
        """calls: where refused requests are logged; None: nowhere."""
        self._app = app
        self._most = limits.http_streams
        self._metrics = metrics
        self._calls = calls
        self._open = 0
        metrics.http_streams.set_function(lambda: self._open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH:
            await self._app(scope, receive, send)
        elif self._most is not None and self._open >= self._most:
            self._metrics.refused(Refusal.STREAMS)
            found = f"{self._open} requests are being answered"
            error = too_many(ErrorCode.OVERLOADED, found, f"{self._most} requests")
            reply = error_response(error, scope["path"])
            await RequestIds(reply, self._calls)(scope, receive, send)
        else:
            self._open += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._open -= 1
