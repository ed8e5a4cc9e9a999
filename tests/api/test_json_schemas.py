"""JSON schemas over HTTP: what is enforced, what is left out and named, what `strict` refuses."""

import json
from typing import Any

import httpx
import pytest
from fake_backend import Connect, FakeBackend
from schema_cases import INT, NAMED, REWRITTEN, TEXT, SchemaCase, obj

from baton.api.fields.ignored import IGNORED_HEADER
from baton.api.http import make_app
from baton.api.json_schemas import JsonSchemas
from baton.api.text_service import TextService
from baton.core.grammar import Grammar
from baton.text.chat_template import ChatTemplate
from baton.text.errors import GrammarError
from baton.text.grammar import MAX_GRAMMAR_CHARS, GrammarCompiler
from baton.text.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def as_format(schema: Any, **more: Any) -> dict[str, Any]:
    form = {"name": "form", "schema": schema} | more
    return HELLO | {"response_format": {"type": "json_schema", "json_schema": form}}


def as_tool(parameters: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters} | more
    return HELLO | {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    }


def grammar_of(backend: FakeBackend) -> Grammar:
    grammar = backend.seen[-1].sampling.grammar
    assert grammar is not None
    return grammar


def takes(tokenizer: Tokenizer, grammar: Grammar, value: Any) -> bool:
    """Return True if a value is a whole answer by the grammar."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    try:
        state = compiler.compile(grammar).start(tokenizer.encode(text, add_special_tokens=False))
        if not state.ended:
            state.push(min(tokenizer.stop_ids))
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize("name", REWRITTEN)
async def test_what_can_be_said_otherwise_is_enforced(
    connect: Connect, backend: FakeBackend, name: str
) -> None:
    case = REWRITTEN[name]
    as_object = obj(v=case.schema) | {"required": ["v"], "additionalProperties": False}
    if "#" in json.dumps(case.schema):  # its pointers begin at its own root
        as_object["properties"]["v"] = {"$id": "https://case.example/"} | case.schema
    async with connect() as client:
        for body, inside in (
            (as_format(case.schema, strict=True), lambda value: value),
            (as_tool(as_object, strict=True), lambda v: [{"name": "f", "arguments": {"v": v}}]),
        ):
            reply = await client.post(CHAT, json=body)
            assert reply.status_code == 200, reply.text
            assert IGNORED_HEADER not in reply.headers
            grammar = grammar_of(backend)
            assert all(takes(backend.tokenizer, grammar, inside(value)) for value in case.good)
            assert not any(takes(backend.tokenizer, grammar, inside(value)) for value in case.bad)


@pytest.mark.parametrize("name", NAMED)
async def test_what_is_left_out_is_named_and_strict_refuses_it(
    connect: Connect, backend: FakeBackend, name: str
) -> None:
    parameters = obj(v=NAMED[name])
    async with connect() as client:
        for make, schema, place, header in (
            (as_format, NAMED[name], "#", "schema"),
            (as_tool, parameters, "#/properties/v", "tools.schema"),
        ):
            reply = await client.post(CHAT, json=make(schema, strict=False))
            assert reply.status_code == 200, reply.text
            assert reply.headers[IGNORED_HEADER] == f"{header}.{name}"
            refused = await client.post(CHAT, json=make(schema, strict=True))
            assert refused.status_code == 400
            assert f"{name} at {place}/{name}" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "header"),
    [
        ("/v1/completions", {"prompt": "x", "guided_json": NAMED["if"]}, "schema.if"),
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": NAMED["not"]}},
         "schema.not"),
        ("/generate", {"text": "x", "sampling_params": {"json_schema": json.dumps(NAMED["if"])}},
         "schema.if"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "n",
                                                             "schema": NAMED["contains"]}}},
         "schema.contains"),
        ("/v1/messages", {"max_tokens": 5, "messages": HELLO["messages"], "output_config": {
            "format": {"type": "json_schema", "schema": NAMED["uniqueItems"]}}},
         "schema.uniqueItems"),
        ("/v1/messages", {"max_tokens": 5, "messages": HELLO["messages"],
                          "tools": [{"name": "f", "input_schema": obj(a=NAMED["format"])}],
                          "tool_choice": {"type": "any"}}, "tools.schema.format"),
    ],
)  # fmt: skip
async def test_every_endpoint_names_what_it_left_out(
    connect: Connect, path: str, body: dict[str, Any], header: str
) -> None:
    async with connect() as client:
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        assert reply.headers[IGNORED_HEADER] == header


async def test_strict_is_read_by_responses_too(connect: Connect) -> None:
    form = {"type": "json_schema", "name": "n", "schema": NAMED["contains"], "strict": True}
    async with connect() as client:
        reply = await client.post("/v1/responses", json={"input": "x", "text": {"format": form}})
        assert reply.status_code == 400
        assert "contains at #/contains" in reply.text
        tool = {"type": "function", "name": "f", "parameters": obj(a=NAMED["if"]), "strict": True}
        body = {"input": "x", "tools": [tool], "tool_choice": "required"}
        reply = await client.post("/v1/responses", json=body)
        assert reply.status_code == 400
        assert "the schema of f" in reply.text and "if at #/properties/a/if" in reply.text


async def test_a_tool_that_need_not_be_called_is_not_checked(
    connect: Connect, backend: FakeBackend
) -> None:
    body = as_tool(obj(a=NAMED["if"]), strict=True) | {"tool_choice": "none"}
    async with connect() as client:
        reply = await client.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
        assert IGNORED_HEADER not in reply.headers


async def test_a_json_object_may_have_a_schema(connect: Connect, backend: FakeBackend) -> None:
    form = {"type": "json_object", "schema": {"properties": {"a": INT}, "required": ["a"]}}
    async with connect() as client:
        reply = await client.post(CHAT, json=HELLO | {"response_format": form})
        assert reply.status_code == 200, reply.text
    grammar = grammar_of(backend)
    assert takes(backend.tokenizer, grammar, {"a": 1})
    for value in ({}, {"a": "x"}, 1):
        assert not takes(backend.tokenizer, grammar, value)


def test_a_schema_has_as_many_characters_as_its_text(tokenizer: Tokenizer) -> None:
    words = ["日本語" + "文" * 13 + str(number) for number in range(2500)]
    schema = {"enum": words}
    size = len(json.dumps(schema, ensure_ascii=False))
    assert size < MAX_GRAMMAR_CHARS < len(json.dumps(schema))
    grammar = JsonSchemas().grammar(schema, "json_schema")
    assert takes(tokenizer, grammar, words[-1])
    assert not takes(tokenizer, grammar, words[-1] + "文")


@pytest.mark.parametrize(
    "schema", [{"enum": ["\ud800"]}, {"const": float("1e999")}, "true it is", "[]", "false"]
)
async def test_what_is_no_schema_is_refused(connect: Connect, schema: Any) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    async with connect() as client:
        reply = await client.post("/v1/completions", json={"prompt": "x", "guided_json": text})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == "guided_json"


async def test_a_request_can_ask_for_closed_objects(connect: Connect, backend: FakeBackend) -> None:
    async with connect() as client:
        for closed in (False, True):
            outputs = {"json": obj(a=INT), "disable_additional_properties": closed}
            body = {"prompt": "x", "structured_outputs": outputs}
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert takes(backend.tokenizer, grammar_of(backend), {"a": 1})
            assert takes(backend.tokenizer, grammar_of(backend), {"b": 1}) is not closed


@pytest.mark.parametrize("closed", [False, True])
async def test_a_server_can_close_objects(
    tokenizer: Tokenizer, backend: FakeBackend, closed: bool
) -> None:
    text = TextService(tokenizer, ChatTemplate(None), closed_objects=closed)
    app = make_app(backend, text)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for field in ("guided_json", "json_schema"):
            body = {"prompt": "x", field: json.dumps(obj(a=obj(b=INT)))}
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            grammar = grammar_of(backend)
            assert takes(tokenizer, grammar, {"a": {"b": 1}})
            assert takes(tokenizer, grammar, {"a": {"c": 1}}) is not closed
            assert takes(tokenizer, grammar, {"c": 1}) is not closed
    text.close()


FILES = obj(
    path=TEXT,
    edits={"type": "array", "items": obj(old=TEXT, new=TEXT) | {"additionalProperties": False}},
    dryRun={"type": "boolean", "default": False, "description": "Preview"},
    head={"type": "number", "minimum": 1},
) | {"$schema": "http://json-schema.org/draft-07/schema#", "required": ["path", "edits"],
     "additionalProperties": False}  # fmt: skip
THOUGHTS = obj(
    more={"type": "boolean", "description": "Whether another one follows"},
    revises={"$ref": "#/properties/more"},
    number={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    at={"type": "string", "format": "uri", "pattern": "^https?://"},
    kind={"anyOf": [{"const": "a"}, {"const": "b"}]},
) | {"$schema": "https://json-schema.org/draft/2020-12/schema", "required": ["more"]}
RECORDS = obj(
    labels={"type": "object", "propertyNames": TEXT, "additionalProperties": TEXT},
    tags={"type": "array", "items": TEXT, "uniqueItems": True, "minItems": 1},
    when={"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
)


async def test_tools_with_the_traits_of_mcp_servers_can_be_forced(
    connect: Connect, backend: FakeBackend
) -> None:
    """The traits of filesystem, sequential-thinking, github, memory and others of npm's
    `@modelcontextprotocol/server-*`, whose own tools were tried once."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in (("edit", FILES), ("think", THOUGHTS), ("keep", RECORDS))
    ]
    async with connect() as client:
        reply = await client.post(CHAT, json=HELLO | {"tools": tools, "tool_choice": "required"})
        assert reply.status_code == 200, reply.text
        assert reply.headers[IGNORED_HEADER] == "tools.schema.uniqueItems"
    grammar = grammar_of(backend)
    calls: dict[str, tuple[list[Any], list[Any]]] = {
        "edit": (
            [{"path": "a", "edits": [{"old": "x", "new": "y"}], "dryRun": True}],
            [{"path": "a"}, {"path": "a", "edits": [{"old": 1}]},
             {"path": "a", "edits": [], "x": 1}],
        ),
        "think": (
            [{"more": True, "revises": False, "number": 3}],
            [{"more": True, "revises": 1}, {"more": True, "at": "ftp://x.y/"}, {}],
        ),
        "keep": ([{"labels": {"a": "b"}, "tags": ["x"], "when": None}], [{"labels": {"a": 1}}]),
    }  # fmt: skip
    for name, (good, bad) in calls.items():
        for arguments in good:
            call = [{"name": name, "arguments": arguments}]
            assert takes(backend.tokenizer, grammar, call), call
        for arguments in bad:
            call = [{"name": name, "arguments": arguments}]
            assert not takes(backend.tokenizer, grammar, call), call


@pytest.mark.parametrize("make", [as_format, as_tool])
async def test_a_wrong_schema_is_refused_with_its_place(connect: Connect, make: Any) -> None:
    async with connect() as client:
        reply = await client.post(CHAT, json=make(obj(a={"items": 3})))
        assert reply.status_code == 400
        assert "no schema at #/properties/a/items" in reply.text


def test_cases_are_of_distinct_schemas() -> None:
    """A case that repeats another one would test nothing."""
    cases: list[SchemaCase] = [*REWRITTEN.values()]
    assert len({json.dumps(case.schema) for case in cases}) == len(cases)
