"""The reference of the HTTP API, made from the models that parse its bodies: `/openapi.json`, and
`/docs` for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton import __version__
from baton.api.access.access import ROUTES
from baton.api.anthropic.body import ConversationBody, MessagesBody
from baton.api.openai.chat_schema import ChatBody
from baton.api.openai.completion_schema import CompletionBody
from baton.api.responses.body import ResponsesBody
from baton.api.sglang.admin import AbortBody
from baton.api.sglang.schema import GenerateBody
from baton.api.tokens import DetokenizeBody, TokenizeBody
from baton.core.errors import ConfigError

SCHEMAS = "#/components/schemas/"
_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@dataclass(frozen=True)
class PathEntry:
    """The reference's entry for one path."""

    summary: str
    body: type[BaseModel] | None = None
    streams: bool = False  # the reply may be server-sent events
    parameter: str | None = None  # of the query
    kind: str = "application/json"


OPERATIONS = {
    "/v1/completions": PathEntry("Continue prompts (OpenAI)", CompletionBody, streams=True),
    "/v1/chat/completions": PathEntry("Answer a conversation (OpenAI)", ChatBody, streams=True),
    "/v1/responses": PathEntry(
        "Answer a conversation (OpenAI's Responses)", ResponsesBody, streams=True
    ),
    "/v1/messages": PathEntry("Answer a conversation (Anthropic)", MessagesBody, streams=True),
    "/v1/messages/count_tokens": PathEntry(
        "Count the tokens of a conversation (Anthropic)", ConversationBody
    ),
    "/v1/models": PathEntry("List the served models (OpenAI)"),
    "/v1/models/{model_id:path}": PathEntry("Describe a served model (OpenAI)"),
    "/tokenize": PathEntry("Convert a prompt or a conversation to token ids", TokenizeBody),
    "/detokenize": PathEntry("Convert token ids to text", DetokenizeBody),
    "/generate": PathEntry("Continue prompts (SGLang)", GenerateBody, streams=True),
    "/health": PathEntry("Say whether this server works; 503: start another"),
    "/ready": PathEntry("Say whether a request sent now could be answered"),
    "/health_generate": PathEntry("Compute one token (SGLang)"),
    "/": PathEntry("Say that a server of Baton is here"),
    "/version": PathEntry("Name Baton's version"),
    "/openapi.json": PathEntry("Return this reference for programs"),
    "/docs": PathEntry("Return this reference for people", kind="text/html"),
    "/model_info": PathEntry("Describe the model (SGLang)"),
    "/get_model_info": PathEntry("Describe the model (SGLang's older name)"),
    "/explain/{request_id}": PathEntry("Say why a request was placed as it was"),
    "/server_info": PathEntry("Describe settings, workers and memory (SGLang)"),
    "/get_server_info": PathEntry("Describe settings, workers and memory (SGLang's older name)"),
    "/flush_cache": PathEntry(
        "Empty the prefix caches (SGLang)", parameter="timeout", kind="text/plain"
    ),
    "/abort_request": PathEntry("Abort requests (SGLang)", AbortBody),
    "/metrics": PathEntry("Return the metrics for Prometheus", kind="text/plain"),
    "/workers/{worker_id}/metrics": PathEntry("Return a worker's metrics", kind="text/plain"),
    "/start_profile": PathEntry("Begin to profile the engines"),
    "/stop_profile": PathEntry("End the profile, and name its files"),
    "/control": PathEntry("Ask whoever runs the cluster to change it", kind="application/x-ndjson"),
    "/prometheus/targets": PathEntry("List what Prometheus should scrape"),
}


def reference_routes(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return the routes of the reference of `routes` and of themselves.

    Raises ConfigError for a path that `OPERATIONS` lacks.
    """
    paths = {route.path: route for route in routes if isinstance(route, Route)}
    methods = {path: tuple(sorted(route.methods or ())) for path, route in paths.items()}
    methods |= {"/openapi.json": ("GET",), "/docs": ("GET",)}
    missing = sorted(methods.keys() - OPERATIONS.keys())
    if missing:
        raise ConfigError(f"the reference has no entry for {', '.join(missing)}")
    listed = tuple(methods.items())

    async def document(_: Request) -> Response:
        return JSONResponse(_document(listed))

    async def page(_: Request) -> Response:
        return HTMLResponse(_page(_document(listed)))

    return [
        Route("/openapi.json", document, methods=["GET"]),
        Route("/docs", page, methods=["GET"]),
    ]


@lru_cache(maxsize=4)
def _document(listed: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of paths with their methods."""
    bodies = {each.body for path, _ in listed if (each := OPERATIONS[path]).body is not None}
    wanted = [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)]
    _, found = models_json_schema(wanted, ref_template=SCHEMAS + "{model}")  # type: ignore[arg-type]
    paths = {
        path.replace(":path", ""): {
            method.lower(): _operation(path, method) for method in methods if method != "HEAD"
        }
        for path, methods in listed
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": __version__,
            "description": "Serving of hybrid language models: OpenAI's, Anthropic's and SGLang's "
            "HTTP APIs. An unknown path, a malformed body or a wrong value is answered with an "
            "error that names it.",
        },
        "paths": paths,
        "components": {
            "schemas": found.get("$defs", {}) | {"OpenAIError": _OPENAI_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(path: str, method: str) -> dict[str, Any]:
    made = OPERATIONS[path]
    content: dict[str, Any] = {made.kind: {}}
    if made.streams:
        content["text/event-stream"] = {}
    name = "_".join(re.findall(r"\w+", path.replace(":path", "")))
    operation: dict[str, Any] = {
        "summary": made.summary,
        "operationId": f"{method.lower()}_{name}",
        "responses": {
            "200": {"description": "The reply", "content": content},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}OpenAIError"}}},
            },
        },
    }
    if ROUTES.get(path) is not None:
        operation["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
        operation["x-scope"] = str(ROUTES[path])
    parameters = list(_parameters(path, made))
    if parameters:
        operation["parameters"] = parameters
    if made.body is not None and method != "GET":
        schema = {"$ref": f"{SCHEMAS}{made.body.__name__}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _parameters(path: str, made: PathEntry) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if made.parameter is not None:
        yield {"name": made.parameter, "in": "query", "schema": {"type": "number", "minimum": 0}}


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td{padding:.1rem .8rem .1rem 0;vertical-align:top}"
    "code{font-size:.95em}summary{cursor:pointer}"
)


def _page(document: Mapping[str, Any]) -> str:
    """Return the document as a page that loads nothing from elsewhere."""
    schemas = document["components"]["schemas"]
    parts = []
    for path, methods in document["paths"].items():
        names = ", ".join(method.upper() for method in methods)
        operation = next(iter(methods.values()))
        parts.append(f"<h2><code>{names} {escape(path)}</code></h2><p>{operation['summary']}</p>")
        bodies = [each["requestBody"] for each in methods.values() if "requestBody" in each]
        if bodies:
            name = bodies[0]["content"]["application/json"]["schema"]["$ref"].removeprefix(SCHEMAS)
            parts.append(_fields(schemas[name]))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Baton</title><style>{_STYLE}"
        f"</style><h1>Baton {escape(document['info']['version'])}</h1>"
        "<p>For programs: <a href=openapi.json>openapi.json</a></p>" + "".join(parts)
    )


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = (
        f"<tr><td><code>{escape(name)}</code><td>{escape(_type_of(each))}"
        f"<td>{'required' if name in required else ''}"
        for name, each in schema["properties"].items()
    )
    return f"<details><summary>Fields</summary><table>{''.join(rows)}</table></details>"


def _type_of(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(SCHEMAS)
    if "const" in schema or "enum" in schema:
        return " | ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " | ".join(_type_of(each) for each in schema[word])
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"list of {_type_of(schema['items'])}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
