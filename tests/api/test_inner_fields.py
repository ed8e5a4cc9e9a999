"""Fields of the objects inside a conversation that nobody knows."""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import anthropic
import fake_backend
import pytest
from api.test_agents_bodies import (
    CHAT,
    HELLO,
    IGNORED,
    MESSAGES,
    RESPONSES,
    SCHEMA,
    TEMPLATE,
    prompt_of,
)
from fake_backend import Connect, FakeBackend
from openai.types import chat as chat_types
from openai.types import responses

from baton.api.fields import inner_fields
from baton.api.fields.inner_fields import ObjectKind
from baton.api.fields.request_fields import UnknownFields, misspelt
from baton.api.openai.chat_schema import ChatBody
from baton.api.schema import parse_body
from baton.api.text_service import TextService
from baton.core.errors import ApiError
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

Json = dict[str, Any]
PLACE = "HERE"
"""The field of the bodies below that each test replaces with fields of its own."""


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 2_000)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


def chat(*messages: Json, **more: Any) -> tuple[str, Json]:
    return CHAT, {"messages": [*HELLO, *messages], **more}


def turns(*blocks: Json, **more: Any) -> tuple[str, Json]:
    message = {"role": "user", "content": list(blocks)}
    return MESSAGES, {"max_tokens": 9, "messages": [*HELLO, message], **more}


def items(*given: Json, **more: Any) -> tuple[str, Json]:
    return RESPONSES, {"input": [*HELLO, *given], **more}


HERE: Json = {PLACE: 1}
TEXT: Json = {"type": "text", "text": "x"}
CALL: Json = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PLACES: list[tuple[tuple[str, Json], str, str, str, str]] = [
    (chat({"role": "user", "content": "x", **HERE}), "messages.1", "messages", "contents",
     "content"),
    (chat({"role": "assistant", "content": "x", **HERE}), "messages.1", "messages", "tool_call",
     "tool_calls"),
    (chat({"role": "user", "content": [TEXT, TEXT | HERE]}), "messages.1.content.1",
     "messages.content", "cache_contol", "cache_control"),
    (chat({"role": "assistant", "tool_calls": [CALL | HERE]}), "messages.1.tool_calls.0",
     "messages.tool_calls", "fonction", "function"),
    (chat({"role": "assistant", "tool_calls": [
        CALL | {"function": {"name": "f", "arguments": "{}", **HERE}}]}),
     "messages.1.tool_calls.0.function", "messages.tool_calls.function", "argument", "arguments"),
    (chat({"role": "assistant", "function_call": {"name": "f", **HERE}}),
     "messages.1.function_call", "messages.function_call", "argumnets", "arguments"),
    (chat(tools=[{"type": "function", "function": {"name": "f", **HERE}}]), "tools.0.function",
     "tools.function", "paramaters", "parameters"),
    (chat(tools=[{"type": "custom", "custom": {"name": "f", **HERE}}]), "tools.0.custom",
     "tools.custom", "descripton", "description"),
    (turns(TEXT | HERE), "messages.1.content.0", "messages.content", "cache_contol",
     "cache_control"),
    (turns({"type": "tool_result", "tool_use_id": "c", "content": "x", **HERE}),
     "messages.1.content.0", "messages.content", "is_eror", "is_error"),
    (turns({"type": "tool_result", "tool_use_id": "c", "content": [TEXT | HERE]}),
     "messages.1.content.0.content.0", "messages.content", "txet", "text"),
    ((MESSAGES, {"max_tokens": 9, "messages": [{**HELLO[0], **HERE}]}), "messages.0", "messages",
     "contnet", "content"),
    (turns(TEXT, system=[TEXT | HERE]), "system.0", "system", "cache_contol", "cache_control"),
    (items({"role": "user", "content": "x", **HERE}), "input.1", "input", "conten", "content"),
    (items({"role": "user", "content": [{"type": "input_text", "text": "x", **HERE}]}),
     "input.1.content.0", "input.content", "tex", "text"),
    (items({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **HERE}),
     "input.1", "input", "argument", "arguments"),
    (items({"type": "function_call_output", "call_id": "c", "output": "x", **HERE}), "input.1",
     "input", "outputs", "output"),
    (items(tools=[{"type": "function", "name": "f", **HERE}]), "tools.0", "tools", "parameter",
     "parameters"),
    (items(tools=[{"type": "namespace", "name": "n", "tools": [
        {"type": "function", "name": "f", **HERE}]}]), "tools.0.tools.0", "tools", "descripton",
     "description"),
]  # fmt: skip


def with_fields(body: Json, fields: Json) -> Json:
    """Return the body with `fields` in its place for them."""

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: made(each) for name, each in value.items() if name != PLACE}
        return found | fields if PLACE in value else found

    found: Json = made(body)
    return found


@pytest.mark.parametrize(
    ("request_", "where", "path", "wrong", "right"),
    PLACES,
    ids=[f"{request[0]} {path}.{wrong}" for request, _, path, wrong, _ in PLACES],
)
async def test_a_misspelling_is_refused_and_another_name_is_left_out(
    request_: tuple[str, Json],
    where: str,
    path: str,
    wrong: str,
    right: str,
    connect: Connect,
    connect_strict: Connect,
    backend: FakeBackend,
) -> None:
    url, body = request_
    async with connect() as client:
        for value in ("q", None):
            reply = await client.post(url, json=with_fields(body, {wrong: value}))
            message = f"{where}.{wrong}: unknown field; did you mean {right}?"
            assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)
        reply = await client.post(url, json=with_fields(body, {"zzz_own": {wrong: 1}}))
        assert reply.status_code == 200, reply.text
        assert reply.headers[IGNORED] == f"{path}.zzz_own"
        shown = prompt_of(backend)
        reply = await client.post(url, json=with_fields(body, {}))
        assert IGNORED not in reply.headers and prompt_of(backend) == shown
    async with connect_strict() as client:
        reply = await client.post(url, json=with_fields(body, {}))
        assert reply.status_code == 200, reply.text
        for name in ("zzz_own", wrong):
            reply = await client.post(url, json=with_fields(body, {name: 1}))
            assert reply.status_code == 400 and f"{where}.{name}: unknown" in reply.text


def kinds() -> dict[str, ObjectKind]:
    return {name: each for name, each in vars(inner_fields).items() if isinstance(each, ObjectKind)}


def test_with_ignore_every_unknown_name_is_left_out() -> None:
    message = {"role": "user", "content": "x", "contents": "y", "zzz": 1}
    raw = json.dumps({"messages": [message, message]}).encode()
    body = parse_body(ChatBody, raw, UnknownFields.IGNORE)
    assert body.notes.ignored == ("messages.contents", "messages.zzz")
    assert [dict(each.more) for each in body.messages] == [{}, {}]


LABELS = (
    "id index status cache_control annotations phase citations caller metadata "
    "provider_specific_fields provider_options providerOptions parsed"
).split()


@pytest.mark.parametrize(
    "request_", [request for request, *_ in PLACES], ids=[each[2] + each[3] for each in PLACES]
)
async def test_labels_of_clients_are_accepted_everywhere(
    request_: tuple[str, Json], connect_strict: Connect
) -> None:
    url, body = request_
    labels: Json = {name: {"contents": 1} for name in LABELS if name not in ("id", "status")}
    async with connect_strict() as client:
        reply = await client.post(url, json=with_fields(body, labels))
    assert reply.status_code == 200 and IGNORED not in reply.headers, reply.text


async def test_schemas_and_arguments_are_not_looked_into(connect_strict: Connect) -> None:
    odd: Json = {"contents": {"tool_call": {"argument": [{"typ": 1}]}}}
    schema = SCHEMA | {"properties": odd}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": odd}}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": odd}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps(odd)}
    function = {"name": "f", "parameters": schema}
    bodies = [
        chat({"role": "assistant", "tool_calls": [call]},
             tools=[{"type": "function", "function": function}]),
        (MESSAGES, {"max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}],
                    "messages": [*HELLO, {"role": "assistant", "content": [use]}]}),
        items(item, tools=[{"type": "function", **function}]),
    ]  # fmt: skip
    async with connect_strict() as client:
        for path, body in bodies:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200 and IGNORED not in reply.headers, reply.text


@pytest.mark.parametrize("kind", kinds().values(), ids=kinds().keys())
def test_no_short_name_is_taken_for_a_misspelling(kind: ObjectKind) -> None:
    """Clients make up labels such as `uid`, which are a letter away from `id`."""
    assert kind.names and min(map(len, kind.names)) > 3
    assert set(kind.inner) <= set(kind.names)


SDKS: list[tuple[ModuleType, str, ObjectKind]] = [
    (chat_types, "Message(Param)?$", inner_fields.CHAT_MESSAGE),
    (chat_types, "ContentPart", inner_fields.PART),
    (chat_types, "ToolCall(Param)?$", inner_fields.CALL),
    (responses, "Message|(Function|Custom)ToolCall|CallOutput|ReasoningItem", inner_fields.ITEM),
    (responses, "(Function|Custom|Namespace)ToolParam$", inner_fields.RESPONSES_TOOL),
    (anthropic.types, "Block(Param)?$", inner_fields.BLOCK),
    (anthropic.types, "Message(Param)?$", inner_fields.TURN),
]


@pytest.mark.parametrize(("module", "named", "kind"), SDKS, ids=[each[1] for each in SDKS])
def test_no_field_of_the_official_clients_is_taken_for_a_misspelling(
    module: ModuleType, named: str, kind: ObjectKind
) -> None:
    found = [each for name, each in vars(module).items() if re.search(named, name)]
    types = [each for each in found if inspect.isclass(each)]
    names = {name for each in types for part in each.__mro__ for name in annotations_of(part)}
    assert set(kind.names) & names, "none of its types were found"
    unknown = names - set(kind.names) - kind.labels
    assert [name for name in unknown if misspelt(name, kind.names)] == []


def annotations_of(part: type) -> list[str]:
    return [name for name in vars(part).get("__annotations__", {}) if not name.startswith("_")]


ROWS = {
    "message of `/v1/chat/completions`": inner_fields.CHAT_MESSAGE,
    "part of a content": inner_fields.PART,
    "entry of `tool_calls`": inner_fields.CALL,
    "its `function` or `custom`": inner_fields.CALLED,
    "`function` or `custom` of a tool": inner_fields.TOOL_FUNCTION,
    "item of `/v1/responses`": inner_fields.ITEM,
    "tool of `/v1/responses`": inner_fields.RESPONSES_TOOL,
    "message of `/v1/messages`": inner_fields.TURN,
    "block of `/v1/messages`": inner_fields.BLOCK,
}


def test_the_document_lists_the_names_that_are_known() -> None:
    page = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
    assert all(kind in ROWS.values() for kind in kinds().values())
    for title, kind in ROWS.items():
        assert f"| {title} | {listed(kind.names)} | {listed(kind.own_labels)} |" in page, title
    assert listed(sorted(inner_fields.ANYWHERE)) in page


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_a_body_of_unknown_names_is_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def near(name: str, known: tuple[str, ...]) -> None:
        compared.append(name)

    monkeypatch.setattr(inner_fields, "_near", near)
    message = {"role": "user", "content": "x"} | {f"q{i}": 1 for i in range(5_000)}
    message |= {"q" * 100_000: 1}
    raw = json.dumps({"messages": [message]}).encode()
    parse_body(ChatBody, raw, UnknownFields.WARN)
    assert len(compared) == 256
    with pytest.raises(ApiError, match=r"messages\.0\.q0: unknown field"):
        parse_body(ChatBody, raw, UnknownFields.REFUSE)
