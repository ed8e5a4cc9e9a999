"""Marks of calls and reasoning that are special tokens: parsers see them, clients never do."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import fake_backend
import httpx
import pytest
import toy_tokenizer
from fake_backend import FakeBackend
from tokenizers import AddedToken

from baton.api.http import make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

MARKS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|tool_call|>", "<|tool_call_start|>",
    "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
]  # fmt: skip
CALL = '{"name": "add", "arguments": {"a": 7}}'
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ANSWERS = {
    "<|tool_call|>": f"I add.<|tool_call|>[{CALL}]",
    "<tool_call>": f"<think>So.</think>I add.<tool_call>{CALL}</tool_call>",
    "<|tool_call_start|>": "I add.<|tool_call_start|>[add(a=7)]<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>": "I add.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    '{"a": 7}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}


@asynccontextmanager
async def serving(
    mark: str, says: str, special: bool
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeBackend]]:
    made = toy_tokenizer.byte_level()
    made.add_tokens([AddedToken(each, special=special) for each in MARKS])
    tokenizer = Tokenizer(made, SpecialTokens())
    template = f"{{# {mark} </think> #}}{{{{ messages[0].content }}}}"
    service = TextService(tokenizer, ChatTemplate(template), alone=True)
    backend = FakeBackend(tokenizer, says=says)
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(backend, service)), base_url="http://toy"
        ) as client:
            yield client, backend
    finally:
        service.close()


@pytest.fixture(autouse=True)
def long_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 500)
    yield


BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": TOOL}],
}


def streamed(text: str) -> tuple[str, str, str]:
    """Return the content, the name and the arguments of a stream's only call."""
    content = name = arguments = ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"]
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                name += call["function"].get("name", "")
                arguments += call["function"]["arguments"]
    return content, name, arguments


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("mark", ANSWERS)
async def test_calls_are_found_in_every_api(mark: str, special: bool) -> None:
    async with serving(mark, ANSWERS[mark], special) as (client, _):
        whole = (await client.post("/v1/chat/completions", json=BODY)).json()["choices"][0]
        stream = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
        message = await client.post(
            "/v1/messages",
            json={"messages": BODY["messages"], "max_tokens": 99}
            | {"tools": [{"name": "add", "input_schema": TOOL["parameters"]}]},
        )
        response = await client.post(
            "/v1/responses", json={"input": "x", "tools": [{"type": "function"} | TOOL]}
        )
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] == "I add."
    (call,) = whole["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 7}
    assert streamed(stream.text) == ("I add.", "add", call["function"]["arguments"])
    blocks = [block for block in message.json()["content"] if block["type"] != "thinking"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert (blocks[0]["text"], blocks[1]["input"]) == ("I add.", {"a": 7})
    items = [item for item in response.json()["output"] if item["type"] != "reasoning"]
    assert [item["type"] for item in items] == ["message", "function_call"]
    assert items[1]["status"] == "completed"


@pytest.mark.parametrize("mark", ANSWERS)
async def test_no_cut_shows_a_special_mark_or_another_call(mark: str) -> None:
    says = ANSWERS[mark]
    async with serving(mark, says, True) as (client, backend):
        length = len(backend.tokenizer.encode(says))
        for limit in range(1, length):
            body = BODY | {"max_tokens": limit}
            reply = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
            assert reply["finish_reason"] == "length"
            content = reply["message"]["content"] or ""
            assert not any(each in content for each in MARKS), limit
            for call in reply["message"].get("tool_calls", ()):
                try:
                    assert json.loads(call["function"]["arguments"]) == {"a": 7}
                except json.JSONDecodeError:
                    assert '{"a": 7}'.startswith(call["function"]["arguments"])


async def test_without_tools_and_with_malformed_calls_special_marks_are_hidden() -> None:
    says = "Use <tool_call> here, <tool_call>{bad}</tool_call>"
    async with serving("<tool_call>", says, True) as (client, _):
        for body in (BODY, {"messages": BODY["messages"]}):
            reply = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
            assert reply["message"]["content"].replace(" ", "") == "Usehere,{bad}"
            assert reply["finish_reason"] == "stop"
    async with serving("<tool_call>", says, False) as (client, _):
        reply = (await client.post("/v1/chat/completions", json=BODY)).json()["choices"][0]
        assert reply["message"]["content"] == "Use <tool_call> here,{bad}"


async def test_stop_strings_are_looked_for_in_the_text_without_marks() -> None:
    says = "<think>So.</think>I stop here, and more"
    async with serving("<tool_call>", says, True) as (client, _):
        body = BODY | {"stop": [" here"]}
        reply = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert reply["message"]["content"] == "I stop"
    assert reply["message"]["reasoning_content"] == "So."


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("skip", [True, False])
async def test_reasoning_behind_a_special_token_is_counted_where_it_is_found(
    skip: bool, special: bool
) -> None:
    says = "<s><think>So.</think>Hi."
    async with serving("<tool_call>", says, special) as (client, backend):
        body = BODY | {"skip_special_tokens": skip, "logprobs": True}
        reply = (await client.post("/v1/chat/completions", json=body)).json()
        ids = backend.tokenizer.encode(says)
    (choice,) = reply["choices"]
    counted = reply["usage"].get("completion_tokens_details", {"reasoning_tokens": 0})
    assert choice["message"].get("reasoning_content", "") == ("So." if skip else "")
    assert counted["reasoning_tokens"] == (len(ids) - len("Hi.") if skip else 0)
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == ("Hi." if skip else says)
