"""`/v1/responses` with the real `openai` client."""

import json
from collections.abc import Iterator
from typing import Any

import fake_backend
import httpx
import openai
import pytest
from api.test_chat_tools import CALL, TEMPLATE
from api.test_openai_client import connected
from fake_backend import Connect, FakeBackend, Serve
from kit.narrowing import of_type, present
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFailedEvent,
    ResponseFormatTextJSONSchemaConfig,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from pydantic import TypeAdapter

from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TOOLS: Any = [
    {
        "type": "function",
        "name": "add",
        "description": "adds",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
]
NO_THOUGHTS: Any = {"chat_template_kwargs": {"thinking": False}}


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 600)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


async def test_a_string_is_answered_with_thoughts_text_and_calls(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = f"So 7.\n</think>\n\nI add.\n{CALL}"
    async with connected(serve) as client:
        reply = await client.responses.create(
            model="toy", input="hello", instructions="Be kind.", tools=TOOLS, store=False,
            metadata={"a": "b"}, max_output_tokens=100,
        )  # fmt: skip
    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
    thought = of_type(ResponseReasoningItem, reply.output[0])
    message = of_type(ResponseOutputMessage, reply.output[1])
    call = of_type(ResponseFunctionToolCall, reply.output[2])
    assert present(thought.content)[0].text == "So 7."
    assert of_type(ResponseOutputText, message.content[0]).text == reply.output_text == "I add."
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 7})
    assert call.call_id.startswith("call_") and call.id != call.call_id
    assert {thought.status, message.status, call.status} == {"completed"}
    assert (reply.status, reply.metadata) == ("completed", {"a": "b"})
    assert present(reply.model_extra)["store"] is False
    (asked,) = backend.seen
    usage = present(reply.usage)
    assert usage.input_tokens == len(asked.prompt_ids)
    assert usage.input_tokens_details.cached_tokens == 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    prompt = backend.tokenizer.decode(asked.prompt_ids)
    assert prompt.startswith("[add]system:Be kind.;user:hello;")
    assert asked.sampling.max_tokens == 100


@pytest.mark.parametrize("per_event", [1, 6, 500])
async def test_the_events_come_in_openais_order_and_make_the_same_reply(
    backend: FakeBackend, serve: Serve, per_event: int
) -> None:
    backend.says = f"So 7.</think>I add.{CALL}"
    backend.per_event = per_event
    async with connected(serve) as client:
        stream = await client.responses.create(model="toy", input="hello", tools=TOOLS, stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    once = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done"]  # fmt: skip
    thought = [kind.replace("output_text", "reasoning_text") for kind in text]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"]  # fmt: skip
    order = ["created", "in_progress", *thought, *text, *call, "completed"]
    assert once == [f"response.{kind}" for kind in order]
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    final = of_type(ResponseCompletedEvent, events[-1]).response
    assert said == final.output_text == "I add."
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert done == final.output
    assert [e.output_index for e in events if e.type == "response.output_item.added"] == [0, 1, 2]
    assert of_type(ResponseCreatedEvent, events[0]).response.output == []
    assert {final.id} == {e.response.id for e in events if hasattr(e, "response")}
    TypeAdapter(Response).validate_python(final.model_dump())


async def test_the_clients_own_accumulator_reads_the_stream(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = f"</think>Well.{CALL}"
    async with connected(serve) as client:
        async with client.responses.stream(model="toy", input="hello", tools=TOOLS) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
    assert final.output_text == "Well."
    assert of_type(ResponseFunctionToolCall, final.output[-1]).name == "add"


async def test_earlier_turns_come_back_as_items(backend: FakeBackend, serve: Serve) -> None:
    history: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I add.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add",
         "arguments": '{"a": 9}'},
        {"type": "function_call_output", "call_id": "c1", "output": "16"},
    ]  # fmt: skip
    backend.says = "ok"
    async with connected(serve) as client:
        await client.responses.create(
            model="toy", input=history, instructions="Be kind.", tools=TOOLS
        )
    prompt = backend.tokenizer.decode(backend.seen[0].prompt_ids)
    assert prompt.startswith(
        "[add]system:Be kind.;system:Be brief.;user:hello;assistant:I add."
        "<tool_call>a=9</tool_call>;tool:16;"
    )


async def test_a_format_and_a_forced_tool_reach_the_grammar(
    backend: FakeBackend, serve: Serve
) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    async with connected(serve) as client:
        backend.says = "</think>{}"
        reply = await client.responses.create(model="toy", input="hello", text=form)
        assert reply.output_text == "{}"
        assert of_type(ResponseFormatTextJSONSchemaConfig, present(reply.text).format)
        backend.says = 'So.</think>[{"name":"add","arguments":{"a":7}}]'
        named: Any = {"type": "function", "name": "add"}
        allowed: Any = {
            "type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "add"}],
        }  # fmt: skip
        for choice in ("required", named, allowed):
            reply = await client.responses.create(
                model="toy", input="hello", tools=TOOLS, tool_choice=choice
            )
            assert [item.type for item in reply.output] == ["reasoning", "function_call"]
        stream = await client.responses.create(
            model="toy", input="hello", tools=TOOLS, tool_choice="required", stream=True
        )
        found = [event async for event in stream]
    parts = [e.delta for e in found if e.type == "response.function_call_arguments.delta"]
    assert len(parts) > 3, "arguments come as they are written"
    (done,) = [e for e in found if e.type == "response.function_call_arguments.done"]
    assert "".join(parts) == done.arguments == '{"a":7}'
    final = of_type(ResponseCompletedEvent, found[-1]).response
    assert of_type(ResponseFunctionToolCall, final.output[1]).status == "completed"
    kinds = [request.sampling.grammar for request in backend.seen]
    assert all(kinds) and '%json {"type": "object"' in present(kinds[0]).text


async def test_the_sampling_parameters_of_the_other_endpoints_work(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "ok"
    more = {
        "stop": ["x"], "logit_bias": {"5": 1.5}, "bad_words": ["hello"], "seed": 7, "top_k": 3,
        "allowed_token_ids": [5, 6], "stop_regex": "b+", "stop_token_ids": [9], "priority": 4,
    }  # fmt: skip
    async with connected(serve) as client:
        await client.responses.create(model="toy", input="hello", extra_body=more)
    (asked,) = backend.seen
    sampling = asked.sampling
    assert (sampling.stop, sampling.seed, sampling.top_k, asked.priority) == (("x",), 7, 3, 4)
    assert sampling.logit_bias and sampling.bad_words and sampling.allowed_token_ids
    assert sampling.stop_regex and sampling.stop_token_ids == (9,)


async def test_an_answer_that_was_cut_is_incomplete(backend: FakeBackend, serve: Serve) -> None:
    backend.says = "hello hello hello"
    async with connected(serve) as client:
        reply = await client.responses.create(
            model="toy", input="hello", max_output_tokens=2, extra_body=NO_THOUGHTS
        )
        stream = await client.responses.create(
            model="toy", input="hello", max_output_tokens=2, stream=True, extra_body=NO_THOUGHTS
        )
        last = [event async for event in stream][-1]
    assert reply.status == "incomplete"
    assert present(reply.incomplete_details).reason == "max_output_tokens"
    assert of_type(ResponseOutputMessage, reply.output[0]).status == "incomplete"
    assert of_type(ResponseIncompleteEvent, last).response.status == "incomplete"


async def test_log_probabilities_of_the_text(backend: FakeBackend, serve: Serve) -> None:
    backend.says = "😀é"
    include: Any = ["message.output_text.logprobs"]
    async with connected(serve) as client:
        reply = await client.responses.create(
            model="toy", input="hello", include=include, top_logprobs=1, extra_body=NO_THOUGHTS
        )
        stream = await client.responses.create(
            model="toy", input="hello", include=include, top_logprobs=1, stream=True,
            extra_body=NO_THOUGHTS,
        )  # fmt: skip
        events = [event async for event in stream]
    message = of_type(ResponseOutputMessage, reply.output[0])
    entries = present(of_type(ResponseOutputText, message.content[0]).logprobs)
    assert b"".join(bytes(entry.bytes) for entry in entries) == "😀é".encode()
    assert [len(entry.top_logprobs) for entry in entries] == [1] * len(entries)
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert sum(len(present(event.logprobs)) for event in deltas) == len(entries)


async def test_an_answer_that_fails_on_its_way_says_so_in_its_last_event(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_after = 2
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "decode-1 was lost")
    async with connected(serve) as client:
        stream = await client.responses.create(
            model="toy", input="hello", stream=True, extra_body=NO_THOUGHTS
        )
        last = [event async for event in stream][-1]
    failed = of_type(ResponseFailedEvent, last).response
    error = present(failed.error)
    assert (failed.status, error.code) == ("failed", "server_error")
    assert error.message == "decode-1 was lost"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_never_began_has_an_http_status(
    backend: FakeBackend, serve: Serve, stream: bool
) -> None:
    backend.fail_first = ApiError(ErrorCode.OVERLOADED, "the queue is full", retry_after_s=1.2)
    async with connected(serve) as client:
        with pytest.raises(openai.RateLimitError, match="queue is full"):
            await client.responses.create(model="toy", input="hello", stream=stream)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation in input"),
    ({"background": True}, "background", "not supported"),
    ({"conversation": "conv_1"}, "conversation", "not supported"),
    ({"truncation": "auto"}, "truncation", "disabled"),
    ({"tools": [{"type": "web_search"}]}, "tools.0", "runs no tools of its own"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "with store: false"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input.0.role", "nobody"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content",
     "input_image"),
    ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input.0.call_id",
     "string"),
    ({"input": []}, "input", "empty"),
    ({"input": "x " * 999}, "input", "This model's maximum context length is 600 tokens"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "schema"),
    ({"model": "other"}, "model", "not served"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "param", "words"), REFUSED, ids=lambda each: str(each)[:40])
async def test_what_cannot_be_served_is_refused_by_name(
    connect_strict: Connect, more: dict[str, Any], param: str, words: str
) -> None:
    async with connect_strict() as client:
        reply: httpx.Response = await client.post(
            "/v1/responses", json={"model": "toy", "input": "hello"} | more
        )
    assert reply.status_code in (400, 404), reply.text
    error = reply.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"], error


@pytest.mark.parametrize("per_event", [1, 500])
async def test_log_probabilities_are_those_of_the_shown_text_and_reasoning_is_counted(
    backend: FakeBackend, serve: Serve, per_event: int
) -> None:
    backend.says, backend.per_event = "So it is.</think>Hi, you.", per_event
    ids = backend.tokenizer.encode(backend.says, add_special_tokens=False)
    shown = len(backend.tokenizer.encode("Hi, you.", add_special_tokens=False))
    common: Any = {
        "model": "toy", "input": "hello", "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }  # fmt: skip
    async with connected(serve) as client:
        whole = await client.responses.create(**common)
        stream = await client.responses.create(**common, stream=True)
        events = [event async for event in stream]
    for reply in (whole, events[-1].response):
        _, message = reply.output
        entries = message.content[0].logprobs
        assert "".join(entry.token for entry in entries) == "Hi, you."
        assert reply.usage.output_tokens_details.reasoning_tokens == len(ids) - shown
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert "".join(entry.token for delta in deltas for entry in delta.logprobs) == "Hi, you."
