"""`/v1/messages` with the real `anthropic` client."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import fake_backend
import httpx
import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from api.test_chat_tools import CALL, TEMPLATE
from fake_backend import Connect, FakeBackend, Serve
from kit.narrowing import of_type, present

from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "name": "add",
        "description": "adds",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
]
OFF: Any = {"type": "disabled"}


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 600)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with serve() as url:
        client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
        async with client:
            yield client


async def test_a_conversation_is_answered_with_thoughts_text_and_calls(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = f"So 7.\n</think>\n\nI add.\n{CALL}"
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=100, system="Be kind.", messages=HELLO, tools=TOOLS,
            metadata={"user_id": "ada"},
        )  # fmt: skip
    thought, text, call = reply.content
    assert of_type(ThinkingBlock, thought).thinking == "So 7."
    assert of_type(TextBlock, text).text == "I add."
    use = of_type(ToolUseBlock, call)
    assert (use.name, use.input) == ("add", {"a": 7})
    assert (reply.stop_reason, reply.stop_sequence, reply.role) == ("tool_use", None, "assistant")
    (asked,) = backend.seen
    assert asked.client_id == "ada"
    usage = reply.usage
    assert usage.input_tokens + present(usage.cache_read_input_tokens) == len(asked.prompt_ids)
    assert usage.cache_read_input_tokens == 1
    prompt = backend.tokenizer.decode(asked.prompt_ids)
    assert prompt.startswith("[add]system:Be kind.;user:hello;")
    assert reply._request_id


async def test_the_input_of_a_forced_call_comes_as_it_is_written(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = '[{"name":"add","arguments":{"a":1234567}}]'
    async with connected(serve) as client:
        stream = await client.messages.create(
            model="toy", max_tokens=100, messages=HELLO, tools=TOOLS, stream=True, thinking=OFF,
            tool_choice={"type": "any"},
        )  # fmt: skip
        deltas = [event.delta for event in [e async for e in stream]
                  if event.type == "content_block_delta"]  # fmt: skip
        whole = await client.messages.create(
            model="toy", max_tokens=100, messages=HELLO, tools=TOOLS, thinking=OFF,
            tool_choice={"type": "any"},
        )  # fmt: skip
    parts = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    assert len(parts) > 4 and json.loads("".join(parts)) == {"a": 1234567}
    (call,) = whole.content
    assert call.type == "tool_use" and call.input == {"a": 1234567}


@pytest.mark.parametrize("per_event", [1, 6, 500])
async def test_the_events_come_in_anthropics_order_and_make_the_same_message(
    backend: FakeBackend, serve: Serve, per_event: int
) -> None:
    backend.says = f"So 7.</think>I add.{CALL}"
    backend.per_event = per_event
    async with connected(serve) as client:
        stream = await client.messages.create(
            model="toy", max_tokens=100, messages=HELLO, tools=TOOLS, stream=True
        )
        kinds = [event.type async for event in stream if event.type != "content_block_delta"]
        block = ["content_block_start", "content_block_stop"]
        assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]
        async with client.messages.stream(
            model="toy", max_tokens=100, messages=HELLO, tools=TOOLS
        ) as accumulated:
            final = await accumulated.get_final_message()
        whole = await client.messages.create(
            model="toy", max_tokens=100, messages=HELLO, tools=TOOLS
        )
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    for reply in (final, whole):
        assert of_type(ToolUseBlock, reply.content[2]).input == {"a": 7}
    assert [b.text for b in final.content if b.type == "text"] == ["I add."]
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_earlier_turns_and_results_of_tools_reach_the_template(
    backend: FakeBackend, serve: Serve
) -> None:
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 9}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1",
             "content": [{"type": "text", "text": "16"}]},
            {"type": "text", "text": "And?"},
        ]},
    ]  # fmt: skip
    backend.says = "ok"
    async with connected(serve) as client:
        await client.messages.create(
            model="toy", max_tokens=10, messages=history, tools=TOOLS,
            system=[{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": " kind."}],
        )  # fmt: skip
    prompt = backend.tokenizer.decode(backend.seen[0].prompt_ids)
    assert prompt.startswith(
        "[add]system:Be\n kind.;user:hello;assistant:I add.<tool_call>a=9</tool_call>;tool:16;"
        "user:And?;"
    )


async def test_choices_of_tools_and_formats_reach_the_grammar(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = 'So.</think>[{"name":"add","arguments":{"a":7}}]'
    async with connected(serve) as client:
        create = client.messages.create
        common: Any = {"model": "toy", "max_tokens": 100, "messages": HELLO, "tools": TOOLS}
        choice: Any
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            reply = await create(**common, tool_choice=choice)
            thought, call = reply.content
            assert of_type(ThinkingBlock, thought).thinking == "So."
            use = of_type(ToolUseBlock, call)
            assert (use.name, use.input) == ("add", {"a": 7})
        one: Any = {"type": "any", "disable_parallel_tool_use": True}
        await create(**common, tool_choice=one)
        backend.says = "Well."
        reply = await create(**common, tool_choice={"type": "none"}, thinking=OFF)
        assert [(b.type, b.text) for b in reply.content] == [("text", "Well.")]
        form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        backend.says = "</think>{}"
        await create(model="toy", max_tokens=19, messages=HELLO, extra_body={"output_config": form})
    grammars = [request.sampling.grammar for request in backend.seen]
    assert [grammar is not None for grammar in grammars] == [True, True, True, False, True]
    assert '"maxItems": 1' in present(grammars[2]).text
    assert "maxItems" not in present(grammars[0]).text
    assert '%json {"type": "object"' in present(grammars[4]).text


@pytest.mark.parametrize(
    ("says", "limit", "reason", "sequence"),
    [
        ("hello", 50, "end_turn", None),
        ("hello hello hello", 2, "max_tokens", None),
        ("one STOP two", 50, "stop_sequence", "STOP"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_reason_of_the_end(
    backend: FakeBackend,
    serve: Serve,
    says: str,
    limit: int,
    reason: str,
    sequence: str | None,
    stream: bool,
) -> None:
    backend.says = says
    given: Any = {
        "model": "toy", "max_tokens": limit, "messages": HELLO, "stop_sequences": ["STOP"],
        "thinking": OFF,
    }  # fmt: skip
    async with connected(serve) as client:
        if stream:
            async with client.messages.stream(**given) as events:
                reply = await events.get_final_message()
        else:
            reply = await client.messages.create(**given)
    assert (reply.stop_reason, reply.stop_sequence) == (reason, sequence)


async def test_tokens_are_counted_as_the_answer_counts_them(
    backend: FakeBackend, serve: Serve
) -> None:
    async with connected(serve) as client:
        counted = await client.messages.count_tokens(
            model="toy", system="Be kind.", messages=HELLO, tools=TOOLS
        )
        await client.messages.create(
            model="toy", system="Be kind.", messages=HELLO, tools=TOOLS, max_tokens=1
        )
    assert counted.input_tokens == len(backend.seen[0].prompt_ids)


async def test_an_error_in_a_stream_is_an_event_of_its_own(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_after = 2
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "decode-1 was lost")
    async with connected(serve) as client:
        stream = await client.messages.create(
            model="toy", max_tokens=9, messages=HELLO, stream=True, thinking=OFF
        )
        with pytest.raises(anthropic.APIStatusError, match="decode-1 was lost"):
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    ("code", "kind", "raised"),
    [
        (ErrorCode.OVERLOADED, "rate_limit_error", anthropic.RateLimitError),
        (ErrorCode.UNAVAILABLE, "overloaded_error", anthropic.InternalServerError),
        (ErrorCode.INTERNAL, "api_error", anthropic.InternalServerError),
        (ErrorCode.TOO_LARGE, "request_too_large", anthropic.APIStatusError),
    ],
)
async def test_errors_have_anthropics_form(
    backend: FakeBackend,
    serve: Serve,
    code: ErrorCode,
    kind: str,
    raised: type[anthropic.APIStatusError],
) -> None:
    backend.fail_first = ApiError(code, "what was wrong")
    async with connected(serve) as client:
        with pytest.raises(raised, match="what was wrong") as caught:
            await client.messages.create(model="toy", max_tokens=9, messages=HELLO)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == kind


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": [{"role": "user", "content": "x " * 999}]}, "prompt is too long: "),
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"tools": [{"name": "web", "type": "web_search_20250305"}]}, "runs no tools of its own"),
    ({"tool_choice": {"type": "any"}}, "no tools"),
    ({"tool_choice": {"type": "tool", "name": "x"}, "tools": TOOLS}, "one of the tools: add"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": [""]}, "stop"),
]


@pytest.mark.parametrize(("more", "words"), REFUSED, ids=lambda each: str(each)[:40])
async def test_what_cannot_be_served_is_refused(
    connect_strict: Connect, more: dict[str, Any], words: str
) -> None:
    async with connect_strict() as client:
        reply: httpx.Response = await client.post(
            "/v1/messages", json={"model": "toy", "max_tokens": 9, "messages": HELLO} | more
        )
    assert reply.status_code == 400, reply.text
    found = reply.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert words in found["error"]["message"], found
