"""Thoughts and calls of tools as the real `openai` client reads them."""

import json
from collections.abc import Iterator
from typing import Any

import fake_backend
import openai
import pytest
from api.test_openai_client import connected
from fake_backend import FakeBackend, Serve
from kit.narrowing import of_type, present
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam

from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}"
    "</tool_call>{% endfor %};{% endfor %}"
    "{% if thinking is not defined or thinking %}<think>\n{% else %}<think></think>{% endif %}"
)
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 500)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


async def test_a_reply_with_thoughts_and_calls(backend: FakeBackend, serve: Serve) -> None:
    backend.says = f"So 7.\n</think>\n\nI add.\n{CALL}\n{CALL}"
    async with connected(serve) as client:
        reply = await client.chat.completions.create(model="toy", messages=HELLO, tools=TOOLS)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I add."
    assert present(choice.message.model_extra)["reasoning_content"] == "So 7."
    calls = [
        of_type(ChatCompletionMessageFunctionToolCall, call)
        for call in present(choice.message.tool_calls)
    ]
    assert [(c.type, c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("function", "add", {"a": 7})
    ] * 2
    assert calls[0].id != calls[1].id
    prompt = backend.tokenizer.decode(backend.seen[0].prompt_ids)
    assert prompt.startswith("[add]user:hello;")


@pytest.mark.parametrize("per_event", [1, 5, 500])
async def test_a_streamed_one_comes_to_the_same(
    backend: FakeBackend, serve: Serve, per_event: int
) -> None:
    backend.says = f"So 7.</think>I add.{CALL}"
    backend.per_event = per_event
    async with connected(serve) as client:
        stream = await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream]
    thoughts = [getattr(choice.delta, "reasoning_content", None) or "" for choice in choices]
    assert "".join(thoughts) == "So 7."
    assert "".join(choice.delta.content or "" for choice in choices) == "I add."
    first, *more = [call for choice in choices for call in choice.delta.tool_calls or []]
    functions = [present(call.function) for call in (first, *more)]
    assert "".join(function.arguments or "" for function in functions) == '{"a": 7}'
    assert [function.name for function in functions] == ["add"] + [None] * len(more)
    assert first.index == 0 and all((call.index, call.id) == (0, None) for call in more)
    assert bool(more) == (per_event < 500), "arguments come while they are written"
    assert choices[-1].finish_reason == "tool_calls"


async def test_without_tools_their_marks_are_content(backend: FakeBackend, serve: Serve) -> None:
    backend.says = f"</think>{CALL}"
    async with connected(serve) as client:
        more: Any
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            reply = await client.chat.completions.create(model="toy", messages=HELLO, **more)
            assert reply.choices[0].message.content == CALL
            assert reply.choices[0].message.tool_calls is None
            assert reply.choices[0].finish_reason == "stop"


async def test_thoughts_that_are_switched_off(backend: FakeBackend, serve: Serve) -> None:
    backend.says = "Hm.</think>Yes."
    off = {"chat_template_kwargs": {"thinking": False}}
    async with connected(serve) as client:
        create = client.chat.completions.create
        whole = await create(model="toy", messages=HELLO, extra_body={"separate_reasoning": False})
        assert whole.choices[0].message.content == "Hm.</think>Yes."
        backend.says = "Yes."
        plain = await create(model="toy", messages=HELLO, extra_body=off)
        assert plain.choices[0].message.content == "Yes."
        assert not hasattr(plain.choices[0].message, "reasoning_content")


async def test_structured_answers_are_not_taken_for_thoughts(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = 'So.</think>{"a":1}'
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with connected(serve) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=HELLO, response_format=form
        )
    message = reply.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["content"]) == ("So.", '{"a":1}')
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    assert "</think>" in grammar.text and '%json {"type": "object"' in grammar.text


async def test_earlier_calls_reach_the_template_as_objects(
    backend: FakeBackend, serve: Serve
) -> None:
    function = {"name": "add", "arguments": '{"a": 9}'}
    call = {"id": "c1", "type": "function", "function": function}
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "16"},
    ]
    backend.says = "ok"
    async with connected(serve) as client:
        await client.chat.completions.create(model="toy", messages=history, tools=TOOLS)
    prompt = backend.tokenizer.decode(backend.seen[0].prompt_ids)
    assert "assistant:<tool_call>a=9</tool_call>;tool:16;" in prompt


async def test_logprobs_come_with_calls_too(backend: FakeBackend, serve: Serve) -> None:
    backend.says = f"</think>{CALL}"
    async with connected(serve) as client:
        stream = await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, logprobs=True, stream=True
        )
        chunks = [chunk async for chunk in stream]
    parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
    entries: list[object] = [e for part in parts for e in part.content or ()]
    entries += [e for part in parts for e in part.model_dump().get("reasoning_content", ())]
    ids = backend.tokenizer.encode(backend.says, add_special_tokens=False)
    assert len(entries) == len(ids)


async def test_a_bad_tool_is_refused(serve: Serve) -> None:
    async with connected(serve) as client:
        with pytest.raises(openai.BadRequestError, match="name"):
            await client.chat.completions.create(
                model="toy",
                messages=HELLO,
                tools=[{"type": "function", "function": {}}],  # type: ignore[typeddict-item]
            )
