"""SGLang's native routes, for `make_app(more_routes=...)`.

Names come from SGLang's documentation. Replies have its fields and some of Baton's own.
"""

from starlette.routing import BaseRoute, Route

from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.admission.defaults import PING_S
from baton.api.backend import Backend
from baton.api.fields.request_fields import UnknownFields
from baton.api.request_body import BodyReader
from baton.api.sglang.admin import SglangAdmin
from baton.api.sglang.generate import GenerateEndpoint
from baton.api.text_service import TextService


def sglang_routes(
    backend: Backend,
    text: TextService,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    unknown_fields: UnknownFields = UnknownFields.WARN,
    incremental: bool = False,
    ping_s: float = PING_S,
) -> list[BaseRoute]:
    """Return the routes, without `/health`, which every application has.

    incremental: streams of `/generate` send new text only (SGLang's --incremental-streaming-
    output). ping_s: see `EventStream`.
    """
    bodies = BodyReader(max_body_bytes, backend, text.large, text.left_out, unknown_fields)
    generate = GenerateEndpoint(backend, text, bodies, incremental, ping_s)
    admin = SglangAdmin(backend, bodies, incremental)
    routes: list[BaseRoute] = [
        Route("/generate", generate.post, methods=["POST", "PUT"]),
        Route("/flush_cache", admin.flush_cache, methods=["GET", "POST"]),
        Route("/abort_request", admin.abort_request, methods=["POST"]),
        Route("/health_generate", admin.health_generate, methods=["GET"]),
    ]
    for path, endpoint in (("model_info", admin.model_info), ("server_info", admin.server_info)):
        routes += [Route(f"/{path}", endpoint), Route(f"/get_{path}", endpoint)]
    return routes
