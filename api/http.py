"""The HTTP application over a `Backend`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from baton.api.backend import Backend
from baton.api.chat import ChatEndpoint
from baton.api.completions import CompletionsEndpoint
from baton.api.disconnect import ClientGone
from baton.api.errors import ApiError, ErrorCode
from baton.api.plain import PlainEndpoints
from baton.api.replies import error_response
from baton.api.text_service import TextService

MAX_BODY_BYTES = 32 << 20
"""A million tokens as text or as ids is under 8 MB."""


@dataclass(frozen=True)
class MetricsPage:
    """What `/metrics` shows: prometheus-client's `generate_latest` and its content type."""

    body: bytes
    content_type: str


def make_app(
    backend: Backend,
    text: TextService,
    metrics: Callable[[], MetricsPage] | None = None,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    more_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """All endpoints, with every failure as OpenAI's error body. It owns nothing that it is given.

    `more_routes` come after these: what only one kind of server answers.
    """
    completions = CompletionsEndpoint(backend, text, max_body_bytes)
    chat = ChatEndpoint(backend, text, max_body_bytes)
    plain = PlainEndpoints(backend)
    routes: list[BaseRoute] = [
        Route("/v1/completions", completions.post, methods=["POST"]),
        Route("/v1/chat/completions", chat.post, methods=["POST"]),
        Route("/v1/models", plain.models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", plain.model, methods=["GET"]),
        Route("/health", plain.health, methods=["GET"]),
    ]
    if metrics is not None:
        routes.append(_metrics_route(metrics))
    routes += more_routes
    return Starlette(
        routes=routes,
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientGone: _on_client_gone,
            ClientDisconnect: _on_client_gone,
            Exception: _on_fault,
        },
    )


def _metrics_route(metrics: Callable[[], MetricsPage]) -> Route:
    async def page(_: Request) -> Response:
        made = metrics()
        return Response(made.body, media_type=made.content_type)

    return Route("/metrics", page, methods=["GET"])


async def _on_api_error(_: Request, err: Exception) -> Response:
    assert isinstance(err, ApiError)
    return error_response(err)


async def _on_http_error(request: Request, err: Exception) -> Response:
    """No such path or method: raised by the router of paths itself."""
    assert isinstance(err, HTTPException)
    message = f"{request.method} {request.url.path}: {err.detail}"
    code = ErrorCode.NOT_FOUND if err.status_code == 404 else ErrorCode.INVALID_REQUEST
    response = error_response(ApiError(code, message))
    response.status_code = err.status_code
    response.headers.update(err.headers or {})
    return response


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """Nobody reads this; access logs do."""
    return error_response(ApiError(ErrorCode.CANCELLED, "the client closed its connection"))


async def _on_fault(_: Request, __: Exception) -> Response:
    """A bug: Starlette raises it again for the server's log; the client learns no internals."""
    return error_response(ApiError(ErrorCode.INTERNAL, "a fault of the server; its log says more"))
