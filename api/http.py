"""The HTTP application over a `Backend`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from baton.api.access.access import guard_routes
from baton.api.access.browser_guard import BrowserPolicy
from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_accounts import RATE_LIMIT_HEADERS
from baton.api.access.key_gate import KeyGate
from baton.api.admission.defaults import PING_S
from baton.api.anthropic.endpoint import MessagesEndpoint
from baton.api.backend import Backend
from baton.api.call_log import CallLog
from baton.api.dispatch import Dispatch, serve_routes
from baton.api.fields.ignored import IGNORED_HEADER
from baton.api.fields.request_fields import UnknownFields
from baton.api.openai.chat import ChatEndpoint
from baton.api.openai.chat_turn import ChatTurns
from baton.api.openai.completions import CompletionsEndpoint
from baton.api.plain import PlainEndpoints
from baton.api.reference import reference_routes
from baton.api.request_body import BodyReader
from baton.api.request_ids import HEADER, SYNTHETIC_HEADER, RequestIds
from baton.api.responses.endpoint import ResponsesEndpoint
from baton.api.text_service import TextService
from baton.api.tokens import TokenEndpoints

EXPOSED = ["retry-after", HEADER, IGNORED_HEADER, SYNTHETIC_HEADER, *RATE_LIMIT_HEADERS]
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
    synthetic: Callable[[], float] = lambda: 0.0,
) -> Starlette:
    """Return the application with all endpoints; failures have OpenAI's error body.

    more_routes: endpoints that only one kind of server has. The caller closes what it passes
    in. browsers: which pages may call; None: those of the server's own address.
    keys: None serves everybody. calls: None logs no call.
    metrics_of_clients: where parts of requests that are left out are counted. ping_s: see
    `EventStream`. synthetic: returns the mean length by which drafts are accepted at random, which
    replies say in a header; 0: answers are the model's. Raises ConfigError for a route without a
    scope.
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
    serve_routes(routes, backend)
    if keys is not None:
        guard_routes(routes, keys)
    browsers = browsers or BrowserPolicy()
    app = Starlette(routes=routes)
    served: ASGIApp = Dispatch(app.router, max_body_bytes)
    if browsers.cors_origins:
        served = CORSMiddleware(
            served,
            allow_origins=browsers.cors_origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    app.middleware_stack = RequestIds(
        served, calls, metrics_of_clients, browsers.refusal, synthetic
    )
    return app


def _metrics_route(metrics: Callable[[], MetricsPage]) -> Route:
    async def page(_: Request) -> Response:
        made = metrics()
        return Response(made.body, media_type=made.content_type)

    return Route("/metrics", page, methods=["GET"])
