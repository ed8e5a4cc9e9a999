"""The refusal of requests for which there is no room, before their bodies are read."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.api.access.access import owner_in
from baton.api.backend import Backend
from baton.api.replies import error_response
from baton.core.errors import ApiError

GENERATING = {
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate",
}  # fmt: skip
"""The paths whose requests the backend queues."""


def guard_capacity(routes: Iterable[BaseRoute], backend: Backend) -> None:
    """Let each route that generates ask for room first."""
    for route in routes:
        if isinstance(route, Route) and route.path in GENERATING:
            route.app = _CapacityGuard(route.app, backend)


class _CapacityGuard:
    """An ASGI application that parses and tokenises only what may be admitted."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self._app = app
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = self._app
        try:
            self._backend.check_room(owner_in(scope))
        except ApiError as error:
            reply = error_response(error, scope["path"])
        await reply(scope, receive, send)
