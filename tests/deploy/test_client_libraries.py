"""The official `openai` and `anthropic` clients against a real router with a small model: a prefill
worker and a decode rank compute every answer."""

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import TextBlock, ToolUseBlock
from deploy.test_without_ray import cluster
from deploy.tiny_worker import DEADLINE_S
from kit.narrowing import of_type, present
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from openai.types.responses import ResponseFunctionToolCall

TURNS = 20
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}"
    "</tool_call>{% endfor %}{% endfor %}<a>"
)
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": [3, 14, 159]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORM = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
HELLO: Any = [{"role": "user", "content": "add!"}]


@pytest.fixture(scope="module")
def chatty(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a template that knows tools."""
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(tiny, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@dataclass(frozen=True)
class Clients:
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    http: httpx.AsyncClient


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[Clients]:
    async with cluster(folder) as both:
        url = str(both.client.http.base_url)
        common: Any = {"max_retries": 0, "timeout": DEADLINE_S, "api_key": "none"}
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", **common) as one,
            anthropic.AsyncAnthropic(base_url=url, **common) as other,
        ):
            yield Clients(one, other, both.client.http)


def check(arguments: Mapping[str, Any]) -> None:
    """A call's arguments follow the schema."""
    assert arguments.keys() == {"a", "b"}
    assert arguments["a"] in (3, 14, 159) and isinstance(arguments["b"], bool)


async def test_an_agent_calls_tools_for_twenty_turns_over_chat_completions(chatty: Path) -> None:
    function = {"name": "add", "description": "adds", "parameters": PARAMETERS}
    messages = list(HELLO)
    async with clients(chatty) as each:
        for turn in range(TURNS):
            given: Any = {
                "model": "model", "messages": messages, "temperature": 1.0, "seed": turn,
                "tools": [{"type": "function", "function": function}],
                "tool_choice": "required", "parallel_tool_calls": False,
            }  # fmt: skip
            if turn % 2:
                async with each.openai.chat.completions.stream(**given) as stream:
                    choice = (await stream.get_final_completion()).choices[0]
            else:
                choice = (await each.openai.chat.completions.create(**given)).choices[0]
            assert choice.finish_reason == "tool_calls"
            (made,) = present(choice.message.tool_calls)
            call = of_type(ChatCompletionMessageFunctionToolCall, made)
            check(json.loads(call.function.arguments))
            messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(turn)})
        last = await each.openai.chat.completions.create(
            model="model", messages=messages, max_tokens=4, tools=given["tools"]
        )
    usage = present(last.usage)
    assert usage.prompt_tokens > TURNS * 30
    assert present(present(usage.prompt_tokens_details).cached_tokens) > 0


async def test_an_agent_calls_tools_for_twenty_turns_over_responses(chatty: Path) -> None:
    items = list(HELLO)
    tool: Any = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": True}
    async with clients(chatty) as each:
        for turn in range(TURNS):
            given: Any = {
                "model": "model", "input": items, "tools": [tool], "store": False,
                "tool_choice": {"type": "function", "name": "add"},
            }  # fmt: skip
            if turn % 2:
                async with each.openai.responses.stream(**given) as stream:
                    reply = await stream.get_final_response()
            else:
                reply = await each.openai.responses.create(**given)
            (made,) = reply.output
            call = of_type(ResponseFunctionToolCall, made)
            check(json.loads(call.arguments))
            items.append(call.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": str(turn)}
            )
        last = await each.openai.responses.create(
            model="model", input=items, tools=[tool], max_output_tokens=4
        )
    usage = present(last.usage)
    assert usage.input_tokens > TURNS * 30
    assert usage.input_tokens_details.cached_tokens > 0


async def test_an_agent_calls_tools_for_twenty_turns_over_messages(chatty: Path) -> None:
    messages = list(HELLO)
    tool: Any = {"name": "add", "description": "adds", "input_schema": PARAMETERS}
    async with clients(chatty) as each:
        for turn in range(TURNS):
            given: Any = {
                "model": "model", "messages": messages, "tools": [tool], "max_tokens": 200,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            }  # fmt: skip
            if turn % 2:
                async with each.anthropic.messages.stream(**given) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await each.anthropic.messages.create(**given)
            assert reply.stop_reason == "tool_use"
            (made,) = reply.content
            call = of_type(ToolUseBlock, made)
            check(call.input)
            result = {"type": "tool_result", "tool_use_id": call.id, "content": str(turn)}
            messages.append({"role": "assistant", "content": reply.content})
            messages.append({"role": "user", "content": [result]})
        counted = await each.anthropic.messages.count_tokens(
            model="model", messages=messages, tools=[tool]
        )
        last = await each.anthropic.messages.create(
            model="model", messages=messages, tools=[tool], max_tokens=4
        )
    hit = present(last.usage.cache_read_input_tokens)
    assert counted.input_tokens == last.usage.input_tokens + hit
    assert hit > 0


async def test_every_api_gives_the_same_greedy_answer(chatty: Path) -> None:
    async with clients(chatty) as each:
        chat = await each.openai.chat.completions.create(
            model="model", messages=HELLO, max_tokens=12, temperature=0
        )
        text = chat.choices[0].message.content
        reply = await each.openai.responses.create(
            model="model", input="add!", max_output_tokens=12, temperature=0
        )
        assert reply.output_text == text
        stream = await each.openai.responses.create(
            model="model", input="add!", max_output_tokens=12, temperature=0, stream=True
        )
        deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
        assert "".join(deltas) == text
        message = await each.anthropic.messages.create(
            model="model", messages=HELLO, max_tokens=12, extra_body={"temperature": 0}
        )
        assert "".join(of_type(TextBlock, block).text for block in message.content) == text
        tokens = (await each.http.post("/tokenize", json={"messages": HELLO})).json()
        assert tokens["count"] == present(chat.usage).prompt_tokens
        assert tokens["count"] == present(reply.usage).input_tokens
        legacy = await each.openai.completions.create(
            model="model", prompt=tokens["tokens"], max_tokens=12, temperature=0, best_of=2
        )
        assert legacy.choices[0].text == text


async def test_formats_and_parallel_calls_are_what_was_asked_for(chatty: Path) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
    async with clients(chatty) as each:
        create = each.openai.chat.completions.create
        for seed in range(2):
            choice = (
                await create(
                    model="model", messages=HELLO, tools=tools, response_format=form, seed=seed,
                    max_tokens=150,
                )
            ).choices[0]  # fmt: skip
            if choice.finish_reason == "length":
                continue
            if choice.message.tool_calls:
                for made in choice.message.tool_calls:
                    call = of_type(ChatCompletionMessageFunctionToolCall, made)
                    check(json.loads(call.function.arguments))
            else:
                assert json.loads(present(choice.message.content)).keys() == {"ok"}
        text: Any = {"format": {"type": "json_schema", "name": "x", "schema": FORM}}
        reply = await each.openai.responses.create(model="model", input="add!", text=text)
        assert json.loads(reply.output_text).keys() == {"ok"}
        config = {"format": {"type": "json_schema", "schema": FORM}}
        message = await each.anthropic.messages.create(
            model="model", messages=HELLO, max_tokens=99, extra_body={"output_config": config}
        )
        assert json.loads(of_type(TextBlock, message.content[0]).text).keys() == {"ok"}
