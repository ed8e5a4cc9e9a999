"""Calls of tools that an answer's limit cuts off, and malformed ones, in every API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import FakeBackend

from baton.api.http import make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TEMPLATE = "{# <tool_call> <function=name> #}{{ messages[0].content }}"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
COMMAND = "rm -rf ./build"
TAGS = (
    f"Wait.\n<tool_call>\n<function=run>\n<parameter=command>\n{COMMAND}\n</parameter>\n"
    "</function>\n</tool_call>"
)
JSON = (
    f'Wait.\n<tool_call>\n{{"name": "run", "arguments": {{"command": "{COMMAND}"}}}}\n</tool_call>'
)
BARE = TAGS.replace("<tool_call>\n", "")
FORCED = f'[{{"name":"run","arguments":{{"command":"{COMMAND}"}}}}]'
MARKUP = ("<tool_call>", "</tool_call>", "</parameter>", "</function>")


@pytest.fixture(autouse=True)
def long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_backend, "CONTEXT", 500)


@asynccontextmanager
async def serving(backend: FakeBackend, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    service = TextService(tokenizer, ChatTemplate(TEMPLATE), alone=True)
    try:
        transport = httpx.ASGITransport(make_app(backend, service))
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
            yield client
    finally:
        service.close()


def chat(limit: int, forced: bool) -> dict[str, Any]:
    function = {"name": "run", "parameters": PARAMETERS}
    return {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": limit,
        "tool_choice": "required" if forced else "auto",
    }


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("says", [TAGS, BARE, JSON, FORCED], ids=["tags", "bare", "json", "forced"])
async def test_a_cut_call_is_never_one_of_other_arguments(
    says: str, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.says = says
    backend.per_event = 7
    length, whole_ones = len(tokenizer.encode(says)), 0
    async with serving(backend, tokenizer) as client:
        for limit in {*range(1, length, 1 if says is TAGS else 5), length}:
            body = chat(limit, says is FORCED)
            reply = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
            message = reply["message"]
            assert not any(mark in (message["content"] or "") for mark in MARKUP), limit
            calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
            assert [as_json(each) for each in calls] in ([], [None], [{"command": COMMAND}]), limit
            whole = bool(calls) and as_json(calls[0]) is not None
            whole_ones += whole

            stream = await client.post("/v1/chat/completions", json=body | {"stream": True})
            deltas = [
                json.loads(line[6:])["choices"][0]["delta"]
                for line in stream.text.splitlines()
                if line.startswith("data: {")
            ]
            assert "".join(d.get("content") or "" for d in deltas) == (message["content"] or "")
            streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert "".join(c["function"]["arguments"] for c in streamed) == "".join(calls)

            blocks = (
                await client.post(
                    "/v1/messages",
                    json={"messages": body["messages"], "max_tokens": limit}
                    | {"tools": [{"name": "run", "input_schema": PARAMETERS}]}
                    | ({"tool_choice": {"type": "any"}} if says is FORCED else {}),
                )
            ).json()["content"]
            inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
            assert inputs == ([{"command": COMMAND}] if whole else [])

            items = (
                await client.post(
                    "/v1/responses",
                    json={"input": "x", "max_output_tokens": limit}
                    | {"tools": [{"type": "function", "name": "run", "parameters": PARAMETERS}]}
                    | {"tool_choice": body["tool_choice"]},
                )
            ).json()["output"]
            made = [item for item in items if item["type"] == "function_call"]
            assert [item["arguments"] for item in made] == calls
            assert all((item["status"] == "completed") == whole for item in made)
    assert whole_ones


@pytest.mark.parametrize("per_event", [1, 500])
@pytest.mark.parametrize(
    ("body", "arguments", "content", "reason"),
    [
        ('{"name":"run","arguments":{"command":"x"}}}', ['{"command":"x"}'], "}", "tool_calls"),
        (
            '{"name":"run","arguments":{}}\n{"name":"run","arguments":{"command":"y"}}',
            ["{}", '{"command":"y"}'],
            "",
            "tool_calls",
        ),
        ('{"name":"run","arguments":{"command":"a\nb"}}', ['{"command":"a'], '\nb"}}', "stop"),
        ('{"name":"run","arguments":{"command":"x",}}', ['{"command":"x",'], "}}", "stop"),
        ('{"name":"run","arguments":{"command":True}}', ['{"command":'], "True}}", "stop"),
        ('{"name":"run"', [], '{"name":"run"', "stop"),
    ],
)
async def test_a_malformed_call_is_the_same_in_streams_and_whole_answers(
    body: str,
    arguments: list[str],
    content: str,
    reason: str,
    per_event: int,
    backend: FakeBackend,
    tokenizer: Tokenizer,
) -> None:
    backend.says, backend.per_event = f"<tool_call>{body}</tool_call>", per_event
    async with serving(backend, tokenizer) as client:
        asked = chat(400, forced=False)
        reply = (await client.post("/v1/chat/completions", json=asked)).json()["choices"][0]
        stream = await client.post("/v1/chat/completions", json=asked | {"stream": True})
        message = {"messages": asked["messages"], "max_tokens": 400} | {
            "tools": [{"name": "run", "input_schema": PARAMETERS}]
        }
        whole = (await client.post("/v1/messages", json=message)).json()
        events = (await client.post("/v1/messages", json=message | {"stream": True})).text
    stop = "tool_use" if reason == "tool_calls" else "end_turn"
    assert whole["stop_reason"] == stop and f'"stop_reason":"{stop}"' in events.replace(" ", "")
    inputs = [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
    assert inputs == [as_json(each) for each in arguments if as_json(each) is not None]
    calls = [call["function"]["arguments"] for call in reply["message"].get("tool_calls", ())]
    found = (calls, reply["message"]["content"] or "", reply["finish_reason"])
    assert found == (arguments, content, reason)
    chunks = [
        json.loads(line[6:])["choices"][0]
        for line in stream.text.splitlines()
        if line.startswith("data: {")
    ]
    streamed = [""] * len(arguments)
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls", ()):
            streamed[call["index"]] += call["function"]["arguments"]
    said = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    assert (streamed, said, chunks[-1]["finish_reason"]) == (arguments, content, reason)
