"""The HTTP application over a `Backend`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from baton.api.access.access import guard_routes
from baton.api.access.browser_guard import BrowserGuard, BrowserPolicy, JsonBodies
from baton.api.access.capacity_guard import guard_capacity
from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_accounts import RATE_LIMIT_HEADERS
from baton.api.access.key_gate import KeyGate
from baton.api.admission.defaults import PING_S
from baton.api.anthropic.endpoint import MessagesEndpoint
from baton.api.backend import Backend
from baton.api.call_log import CallLog
from baton.api.content_coding import DecodedBodies
from baton.api.disconnect import ClientGone
from baton.api.fields.ignored import IGNORED_HEADER
from baton.api.fields.request_fields import UnknownFields
from baton.api.openai.chat import ChatEndpoint
from baton.api.openai.chat_turn import ChatTurns
from baton.api.openai.completions import CompletionsEndpoint
from baton.api.plain import PlainEndpoints
from baton.api.reference import reference_routes
from baton.api.relative_redirects import RelativeRedirects
from baton.api.replies import error_response
from baton.api.request_body import BodyReader
from baton.api.request_ids import HEADER, RequestIds, request_id_of
from baton.api.responses.endpoint import ResponsesEndpoint
from baton.api.text_service import TextService
from baton.api.tokens import TokenEndpoints
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

EXPOSED = ["retry-after", HEADER, IGNORED_HEADER, *RATE_LIMIT_HEADERS]
"""The headers of replies that pages of `--cors-origin` may read."""


@dataclass(frozen=True)
class MetricsPage:
    """The body and content type of `/metrics`, from prometheus-client's `generate_latest`."""

    body: bytes
    content_type: str


def make_app(
    backend: Backend,
    text: TextService,
    metrics: Callable[[], MetricsPage] | None = None,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    unknown_fields: UnknownFields = UnknownFields.WARN,
    more_routes: Sequence[BaseRoute] = (),
    browsers: BrowserPolicy | None = None,
    keys: KeyGate | None = None,
    calls: CallLog | None = None,
    metrics_of_clients: ClientMetrics | None = None,
    ping_s: float = PING_S,
) -> Starlette:
    """Return the application with all endpoints; failures have OpenAI's error body.

    more_routes: endpoints that only one kind of server has. The caller closes what it passes
    in. browsers: which pages may call; None: those of the server's own address.
    keys: None serves everybody. calls: None logs no call.
    metrics_of_clients: where parts of requests that are left out are counted. ping_s: see
    `EventStream`. Raises ConfigError for a route without a scope.
    """
    bodies = BodyReader(max_body_bytes, backend, text.large, text.left_out, unknown_fields)
    completions = CompletionsEndpoint(backend, text, bodies, ping_s)
    turns = ChatTurns(backend, text)
    chat = ChatEndpoint(turns, bodies, ping_s)
    responses = ResponsesEndpoint(turns, bodies, ping_s)
    messages = MessagesEndpoint(turns, bodies, ping_s)
    tokens = TokenEndpoints(backend, text, bodies)
    plain = PlainEndpoints(backend, details=keys is None)
    routes: list[BaseRoute] = [
        Route("/v1/completions", completions.post, methods=["POST"]),
        Route("/v1/chat/completions", chat.post, methods=["POST"]),
        Route("/v1/responses", responses.post, methods=["POST"]),
        Route("/v1/messages", messages.post, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
        Route("/v1/models", plain.models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", plain.model, methods=["GET"]),
        Route("/health", plain.health, methods=["GET"]),
        Route("/ready", plain.ready, methods=["GET"]),
        Route("/", plain.root, methods=["GET"]),
        Route("/version", plain.version, methods=["GET"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]
    if metrics is not None:
        routes.append(_metrics_route(metrics))
    routes += more_routes
    routes += reference_routes(routes)
    guard_capacity(routes, backend)
    if keys is not None:
        guard_routes(routes, keys)
    return Starlette(
        routes=routes,
        middleware=_middleware(
            browsers or BrowserPolicy(), calls, metrics_of_clients, max_body_bytes
        ),
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientGone: _on_client_gone,
            ClientDisconnect: _on_client_gone,
            Exception: _on_fault,
        },
    )


def _middleware(
    browsers: BrowserPolicy,
    calls: CallLog | None,
    metrics: ClientMetrics | None,
    max_body_bytes: int,
) -> list[Middleware]:
    """Return what each request passes first, in order."""
    layers = [Middleware(RequestIds, calls, metrics), Middleware(BrowserGuard, browsers)]
    if browsers.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=browsers.cors_origins,
                allow_methods=["GET", "POST", "PUT"],
                allow_headers=["*"],
                expose_headers=EXPOSED,
            )
        )
    layers += [Middleware(JsonBodies), Middleware(DecodedBodies, max_body_bytes)]
    return [*layers, Middleware(RelativeRedirects)]


def _metrics_route(metrics: Callable[[], MetricsPage]) -> Route:
    async def page(_: Request) -> Response:
        made = metrics()
        return Response(made.body, media_type=made.content_type)

    return Route("/metrics", page, methods=["GET"])


async def _on_api_error(request: Request, err: Exception) -> Response:
    assert isinstance(err, ApiError)
    return error_response(err, request.url.path)


async def _on_http_error(request: Request, err: Exception) -> Response:
    """Answer a request for an unknown path or method."""
    assert isinstance(err, HTTPException)
    message = f"{request.method} {request.url.path}: {err.detail}"
    code = ErrorCode.NOT_FOUND if err.status_code == 404 else ErrorCode.INVALID_REQUEST
    response = error_response(ApiError(code, message), request.url.path)
    response.status_code = err.status_code
    response.headers.update(err.headers or {})
    return response


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """Return a status for the access log. The client reads nothing."""
    return error_response(ApiError(ErrorCode.CANCELLED, "the client closed its connection"))


async def _on_fault(request: Request, _: Exception) -> Response:
    """Answer after a bug. Starlette raises the error again for the log; the client sees no
    internals.
    """
    fault = ApiError(ErrorCode.INTERNAL, "a fault of the server; its log says more")
    response = error_response(fault, request.url.path)
    # Starlette sends this one past all middleware.
    response.headers[HEADER] = request_id_of(request.scope)
    return response
