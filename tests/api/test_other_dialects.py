"""Bodies that clients write as another API has them do what their writers mean."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from fake_backend import Connect, FakeBackend
from prompt_model import CHAT, MESSAGES, RESPONSES, Model, made_model, template_named

from baton.api.backend import GenerateRequest
from baton.api.text_service import TextService
from baton.text.tokenizer import Tokenizer

IGNORED = "x-baton-ignored"
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "d", "parameters": SCHEMA}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    with made_model(tmp_path, template_named("strict_text")) as model:
        yield model


@pytest.fixture
def text(model: Model) -> TextService:
    return model.text


@pytest.fixture
def tokenizer(model: Model) -> Tokenizer:
    return model.tokenizer


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"tool_choice": "any"}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "required"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        ({"tool_choice": {"type": "tool", "name": "weather"}}, {"tool_choice": NAMED}),
        ({"tool_choice": {"type": "function", "name": "weather"}}, {"tool_choice": NAMED}),
        ({"tools": [{"function": FUNCTION}]}, {"tools": [TOOL]}),
        ({"tools": [{"type": None, "function": FUNCTION}]}, {"tools": [TOOL]}),
        ({"tools": [{"type": "function", **FUNCTION}, OTHER]}, {"tools": [TOOL, OTHER]}),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"response_format": FORM}),
        ({"top_logprobs": 0}, {}),
        ({"service_tier": "flex"}, {}),
        ({"service_tier": "priority"}, {"service_tier": "auto"}),
    ],
    ids=str,
)
async def test_a_body_of_chat_completions_means_the_same(
    backend: FakeBackend, connect: Connect, written: dict[str, Any], meant: dict[str, Any]
) -> None:
    common = {"messages": HELLO} | ({"tools": [TOOL, OTHER]} if "tool_choice" in written else {})
    async with connect() as client:
        for body in (written, meant):
            reply = await client.post(CHAT, json=common | body)
            assert reply.status_code == 200, reply.text
            assert IGNORED not in reply.headers
    found, right = (_asked(request) for request in backend.seen)
    assert found == right


def _asked(request: GenerateRequest) -> tuple[Any, ...]:
    return request.prompt_ids, request.sampling


@pytest.mark.parametrize("tier", ["flex", "scale", "priority"])
async def test_a_tier_of_service_is_a_label_everywhere(connect: Connect, tier: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": HELLO},
        RESPONSES: {"input": "hi"},
        MESSAGES: {"messages": HELLO, "max_tokens": 9},
        "/v1/completions": {"prompt": "hi"},
    }
    async with connect() as client:
        for path, body in bodies.items():
            reply = await client.post(path, json=body | {"service_tier": tier})
            assert (reply.status_code, IGNORED in reply.headers) == (200, False), reply.text


@pytest.mark.parametrize("name", ["models", "top_a"])
async def test_fields_of_openrouter_are_not_misspellings(connect: Connect, name: str) -> None:
    async with connect() as client:
        reply = await client.post(CHAT, json={"messages": HELLO, name: ["x"]})
        assert (reply.status_code, reply.headers[IGNORED]) == (200, name)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice names None"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice is {"),
        ({"tools": [TOOL], "tool_choice": "weather"}, "tool_choice is 'weather'"),
        ({"tools": [{"type": "function", "description": "d"}]}, "function: Field required"),
        ({"tools": [{"name": "x", "input_schema": SCHEMA}]}, "tools.0.type"),
        ({"response_format": {"type": "json_schema"}}, "expected json_schema.schema"),
        ({"top_logprobs": 1}, "needs logprobs"),
    ],
    ids=str,
)
async def test_what_nobody_can_mean_is_refused(
    connect: Connect, body: dict[str, Any], says: str
) -> None:
    async with connect() as client:
        reply = await client.post(CHAT, json={"messages": HELLO} | body)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


async def test_the_older_name_of_a_format_of_messages_works(
    backend: FakeBackend, connect: Connect
) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 9}
    async with connect() as client:
        for written in ({"output_format": form}, {"output_config": {"format": form}}):
            reply = await client.post(MESSAGES, json=body | written)
            assert (reply.status_code, IGNORED in reply.headers) == (200, False), reply.text
    found, right = (request.sampling.grammar for request in backend.seen)
    assert found is not None
    assert found == right
