"""Fields and tools that agents send and no server but their vendor's has."""

import json
from collections.abc import Iterator
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import Connect, FakeBackend
from prometheus_client import CollectorRegistry

from baton.api.access.client_metrics import ClientMetrics
from baton.api.fields.request_fields import edits_between, misspelt
from baton.api.http import make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %};{% endfor %}"
)
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
IGNORED = "x-baton-ignored"


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 2_000)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


def prompt_of(backend: FakeBackend) -> str:
    return backend.tokenizer.decode(backend.seen[-1].prompt_ids)


CLAUDE_CODE: dict[str, Any] = {
    "max_tokens": 9,
    "messages": HELLO,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA, "defer_loading": True,
         "input_examples": [{}], "allowed_callers": ["direct"]},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    ],
}  # fmt: skip
CODEX: dict[str, Any] = {
    "input": [{"role": "developer", "content": "a"}, {"role": "developer", "content": "b"}, *HELLO],
    "client_metadata": {"x-codex-installation-id": "1"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low", "summary": "auto", "context": "x", "mode": "y"},
    "truncation": "auto",
    "tools": [
        {"type": "function", **FUNCTION, "strict": False},
        {"type": "namespace", "name": "mcp__docs", "description": "d", "tools": [
            {"type": "function", "name": "search", "parameters": SCHEMA}]},
        {"type": "custom", "name": "apply_patch", "description": "p",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation"},
        {"type": "local_shell"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (MESSAGES, CLAUDE_CODE, {"context_management", "tools[web_search_20250305]"}),
        (
            RESPONSES,
            CODEX,
            {"truncation", "tools[web_search]", "tools[image_generation]", "tools[local_shell]"},
        ),
        (
            CHAT,
            {"messages": HELLO, "return_token_ids": True, "return_token_offsets": True,
             "web_search_options": {"a": 1}, "tools": [{"type": "web_search"}]},
            {"return_token_ids", "return_token_offsets", "web_search_options",
             "tools[web_search]"},
        ),
        ("/v1/messages/count_tokens", {
            "messages": HELLO, "context_management": CLAUDE_CODE["context_management"]},
            {"context_management"}),
    ],
    ids=["claude", "codex", "chat", "count"],
)  # fmt: skip
async def test_what_only_a_vendor_has_is_left_out_and_named(
    path: str,
    body: dict[str, Any],
    ignored: set[str],
    connect: Connect,
    connect_strict: Connect,
) -> None:
    async with connect() as client:
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        assert set(reply.headers[IGNORED].split(", ")) == ignored
        plain = await client.post(path, json={**body, **dict.fromkeys(ignored & body.keys()),
                                              "tools": None})  # fmt: skip
        assert IGNORED not in plain.headers
    async with connect_strict() as client:
        assert (await client.post(path, json=body)).status_code == 400


STATE = [
    (RESPONSES, {"input": "x"}, "previous_response_id", "resp_1"),
    (RESPONSES, {"input": "x"}, "conversation", "conv_1"),
    (MESSAGES, {"messages": HELLO, "max_tokens": 1}, "thread", {"id": "t"}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 1}, "container", "c"),
]


@pytest.mark.parametrize(("path", "body", "name", "value"), STATE)
async def test_what_holds_state_elsewhere_is_refused(
    path: str, body: dict[str, Any], name: str, value: object, connect: Connect
) -> None:
    async with connect() as client:
        reply = await client.post(path, json=body | {name: value})
    assert reply.status_code == 400
    assert f"{name} is not supported" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("tempreature", "temperature"),
        ("shema", "schema"),
        ("rids", "rid"),
        ("client_metadata", None),
        ("thread", None),
        ("context_management", None),
        ("use", None),
        ("usage", None),
    ],
)
def test_a_misspelling_is_a_letter_or_two_away(name: str, known: str | None) -> None:
    names = ["max_tokens", "temperature", "schema", "rid", "metadata", "stream", "content", "seed"]
    assert misspelt(name, names) == known


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "xabc", 1),
     ("abc", "axc", 1), ("abcd", "badc", 2), ("abc", "xyz", 3), ("a", "abcdefgh", 4)],
)  # fmt: skip
def test_edits_are_letters_added_dropped_changed_or_swapped(
    one: str, other: str, edits: int
) -> None:
    assert edits_between(one, other, 3) == edits_between(other, one, 3) == edits


async def test_a_misspelling_is_refused_in_an_inner_object(connect: Connect) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "thinking": {"type": "enabled", "budget_token": 5}}
    async with connect() as client:
        reply = await client.post(MESSAGES, json=body)
        assert reply.status_code == 400 and "did you mean budget_tokens?" in reply.text
        body["thinking"] = {"type": "enabled", "depth": 5}
        reply = await client.post(MESSAGES, json=body)
        assert (reply.status_code, reply.headers[IGNORED]) == (200, "thinking.depth")


async def test_names_that_clients_make_up_are_made_safe_for_a_header(connect: Connect) -> None:
    names = {f"zz{i}\r\nset-cookie: é" + "q" * 99: 1 for i in range(40)}
    async with connect() as client:
        reply = await client.post(CHAT, json={"messages": HELLO, **names})
    assert reply.status_code == 200
    shown = reply.headers[IGNORED]
    assert shown.startswith("zz0??set-cookie???q") and shown.endswith(", and-8-more")
    assert "set-cookie" not in reply.headers and len(shown) < 3_000


async def test_what_is_left_out_is_counted_by_known_names(
    backend: FakeBackend, text: TextService
) -> None:
    registry = CollectorRegistry()
    app = make_app(backend, text, metrics_of_clients=ClientMetrics("router", registry))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://toy"
    ) as client:
        for more in ({}, {"zz1": 1, "zz2": 2}, {"zz3": 1, "return_token_ids": True}):
            await client.post(CHAT, json={"messages": HELLO, **more})
    counted = {
        sample.labels["field"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "baton_router_ignored_fields_total"
    }
    assert counted == {"other": 2.0, "return_token_ids": 1.0}


async def test_tools_of_a_namespace_and_custom_ones_are_functions_to_the_model(
    backend: FakeBackend, connect: Connect
) -> None:
    backend.says = (
        '<tool_call>{"name": "mcp__docs__search", "arguments": {"q": 1}}</tool_call>'
        '<tool_call>{"name": "apply_patch", "arguments": {"input": "a\\nb"}}</tool_call>'
    )
    async with connect() as client:
        reply = (await client.post(RESPONSES, json=CODEX)).json()
        shown = prompt_of(backend)
        tools, end = [], 0
        while shown.startswith("[", end):
            tool, end = json.JSONDecoder().raw_decode(shown, end + 1)
            tools.append(tool["function"])
            end += 1
        assert [tool["name"] for tool in tools] == ["f", "mcp__docs__search", "apply_patch"]
        assert tools[2]["parameters"]["required"] == ["input"] and tools[2]["description"] == "p"
        search, patch = reply["output"]
        assert (search["type"], search["name"]) == ("function_call", "search")
        assert (search["namespace"], search["arguments"]) == ("mcp__docs", '{"q": 1}')
        assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
        assert (patch["input"], patch["status"]) == ("a\nb", "completed")
        results = [
            {"type": "function_call_output", "call_id": search["call_id"], "output": "r"},
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "s"},
        ]
        again = CODEX | {"input": [*HELLO, search, patch, *results]}
        assert (await client.post(RESPONSES, json=again)).status_code == 200
        said = 'assistant:<tool_call>{"name": "mcp__docs__search", "arguments": {"q": 1}}'
        assert said in prompt_of(backend)
        assert '"apply_patch", "arguments": {"input": "a\\nb"}}' in prompt_of(backend)
        events = await client.post(RESPONSES, json=CODEX | {"stream": True})
    lines = [line for line in events.text.splitlines() if line.startswith("data: ")]
    parsed = [json.loads(line.removeprefix("data: ")) for line in lines]
    done = [each["item"] for each in parsed if each["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["function_call", "custom_tool_call"]
    delta, whole = [
        each for each in parsed if each["type"].startswith("response.custom_tool_call_input")
    ]
    assert (delta["delta"], whole["input"]) == ("a\nb", "a\nb")


async def test_a_tool_of_a_namespace_can_be_chosen(backend: FakeBackend, connect: Connect) -> None:
    backend.says = '[{"name":"mcp__docs__search","arguments":{}}]'
    choice = {"type": "function", "name": "search", "namespace": "mcp__docs"}
    async with connect() as client:
        reply = await client.post(RESPONSES, json=CODEX | {"tool_choice": choice})
    assert reply.status_code == 200, reply.text
    assert reply.json()["output"][0]["name"] == "search"


async def test_reasoning_comes_back_sealed(
    backend: FakeBackend, connect: Connect, text: TextService
) -> None:
    backend.says = "<think>hmü</think>Yes."
    asked = {"input": HELLO, "include": ["reasoning.encrypted_content"]}
    async with connect() as client:
        reply = (await client.post(RESPONSES, json=asked)).json()
        thought, message = reply["output"]
        assert message["content"][0]["logprobs"] == []
        bare = {"type": "reasoning", "summary": [], "id": "rs_1"}
        prompts = []
        for sealed in (thought["encrypted_content"], "gAAAA", "baton-1.%", None):
            items = [*HELLO, bare | {"encrypted_content": sealed}, message, *HELLO]
            assert (await client.post(RESPONSES, json={"input": items})).status_code == 200
            prompts.append(prompt_of(backend))
    assert "assistant:<think>hmü</think>Yes.;" in prompts[0]
    assert all("assistant:Yes.;" in prompt for prompt in prompts[1:])
