"""Every bad request gets a clear error with the right code, and the next request works."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fake_backend import CONTEXT, Connect, FakeBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.api.fields.field_table import FieldPlace
from baton.api.fields.request_fields import BY_PLACE

JSON = {"content-type": "application/json"}
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "Field required"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "no tokens"),
    ({"prompt": [[]]}, "prompt", "no tokens"),
    ({"prompt": ["x", ""]}, "prompt", "empty"),
    ({"prompt": 5}, "prompt", "expected a string"),
    ({"prompt": [1, "x"]}, "prompt", "expected a string"),
    ({"prompt": [True]}, "prompt", "expected a string"),
    ({"prompt": [-1]}, "prompt", "token id -1; expected 0 to"),
    ({"prompt": [10**6]}, "prompt", "token id 1000000; expected 0 to"),
    ({"prompt": [10**30]}, "prompt", "expected 0 to"),
    ({"prompt": [65] * CONTEXT}, "prompt", f"context length is {CONTEXT}"),
    ({"prompt": "hello " * CONTEXT}, "prompt", f"context length is {CONTEXT}"),
    ({"prompt": "x", "max_tokens": -1}, "max_tokens", "expected 0 to"),
    ({"prompt": "x", "max_tokens": 2**40}, "max_tokens", "expected 0 to"),
    ({"prompt": "x", "max_tokens": "9"}, "max_tokens", "valid integer"),
    ({"prompt": "x", "max_tokens": 1.5}, "max_tokens", "valid integer"),
    ({"prompt": "x", "temperature": -0.1}, "temperature", "is -0.1; expected 0 to 100"),
    ({"prompt": "x", "temperature": 1e30}, "temperature", "expected 0 to 100"),
    ({"prompt": "x", "temperature": float("nan")}, "temperature", "is nan; expected 0 to 100"),
    ({"prompt": "x", "temperature": float("inf")}, "temperature", "is inf; expected 0 to 100"),
    ({"prompt": "x", "temperature": "hot"}, "temperature", "valid number"),
    ({"prompt": "x", "temperature": True}, "temperature", "valid number"),
    ({"prompt": "x", "top_p": 0}, "top_p", "is 0.0; expected 1e-06 to 1"),
    ({"prompt": "x", "top_p": 1.01}, "top_p", "expected 1e-06 to 1"),
    ({"prompt": "x", "top_k": -2}, "top_k", "is -2; expected -1 to"),
    ({"prompt": "x", "min_p": 1.5}, "min_p", "expected 0 to 1"),
    ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", "expected 0.01 to 100"),
    ({"prompt": "x", "presence_penalty": 3}, "presence_penalty", "expected -2 to 2"),
    ({"prompt": "x", "frequency_penalty": -3}, "frequency_penalty", "expected -2 to 2"),
    ({"prompt": "x", "seed": 2**64}, "seed", "expected -9223372036854775808 to"),
    ({"prompt": "x", "seed": 0.5}, "seed", "valid integer"),
    ({"prompt": "x", "n": 0}, "n", "is 0; expected 1 to 128"),
    ({"prompt": ["x"] * 3, "n": 128}, "prompt", "384 answers in one request"),
    ({"prompt": "x", "stop": 7}, "stop", "expected a string or a list"),
    ({"prompt": "x", "stop": [""]}, "stop", "length of a stop string is 0"),
    ({"prompt": "x", "stop": ["a" * 300]}, "stop", "expected 1 to 256"),
    ({"prompt": "x", "stop": ["a"] * 17}, "stop", "number of stop strings is 17"),
    ({"prompt": "x", "stop_token_ids": [-1]}, "stop_token_ids", "is -1"),
    ({"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids.0", "valid integer"),
    ({"prompt": "x", "min_tokens": 20}, "min_tokens", "more than max_tokens"),
    ({"prompt": "x", "logprobs": 129}, "logprobs", "is 129; expected 0 to 128"),
    ({"prompt": "x", "logprobs": True}, "logprobs", "valid integer"),
    ({"prompt": "x", "stream": "yes"}, "stream", "valid boolean"),
    ({"prompt": "x", "stream_options": {}}, "stream_options", "needs stream"),
    ({"prompt": "x", "best_of": 129}, "best_of", "expected n to 128"),
    ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
    ({"prompt": "x", "logit_bias": {"a": 1.0}}, "logit_bias", "expected token ids as names"),
    ({"prompt": "x", "logit_bias": {"²": 1.0}}, "logit_bias", "expected token ids as names"),
    ({"prompt": "x", "logit_bias": {"5": 101}}, "logit_bias", "is 101.0; expected -100 to 100"),
    ({"prompt": "x", "logit_bias": {"9999": 1}}, "logit_bias", "token id 9999; expected 0 to"),
    ({"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids", "at least 1 item"),
    ({"prompt": "x", "allowed_token_ids": [9999]}, "allowed_token_ids", "token id 9999"),
    ({"prompt": "x", "stop_token_ids": [9999]}, "stop_token_ids", "token id 9999"),
    ({"prompt": "x", "bad_words": [""]}, "bad_words", "length of a bad_words string is 0"),
    ({"prompt": "x", "stop_regex": "(a"}, "stop_regex", "a ( without its )"),
    ({"prompt": "x", "stop_regex": "a*"}, "stop_regex", "matches the empty text"),
    ({"prompt": "x", "stop_regex": "(a{200}){200}"}, "stop_regex", "too large"),
    ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
    (
        {"prompt": "x", "prompt_logprobs": 1, "echo": True, "logprobs": 2},
        "prompt_logprobs",
        "give the same",
    ),
    ({"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 or more"),
    ({"prompt": "x", "truncation_side": "middle"}, "truncation_side", "'left' or 'right'"),
    ({"prompt": "x", "guided_choice": []}, "guided_choice", "one or more texts"),
    ({"prompt": "x", "guided_regex": "a", "regex": "b"}, "guided_regex", "expected one of them"),
    ({"prompt": "x", "model": 5}, "model", "valid string"),
]
BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "Field required"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": "hello"}, "messages", "valid array"),
    ({"messages": [{"content": "x"}]}, "messages.0.role", "Field required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "expected a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
        "parts of type 'text'",
    ),
    ({"messages": USER, "top_logprobs": 3}, "top_logprobs", "needs logprobs"),
    ({"messages": USER, "logprobs": True, "top_logprobs": 129}, "top_logprobs", "0 to 128"),
    ({"messages": USER, "logprobs": 5}, "logprobs", "valid boolean"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools.0.function", "required"),
    ({"messages": USER, "tools": [{"type": "x", "function": {"name": "f"}}]}, "tools.0.type", ""),
    ({"messages": USER, "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"messages": USER, "functions": [{"name": "f"}]}, "functions", "not supported"),
    (
        {"messages": USER, "continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt",
        "give one of them",
    ),
    (
        {"messages": [{"role": "assistant"}], "continue_final_message": True},
        "messages",
        "no text to continue",
    ),
    (
        {
            "messages": USER,
            "regex": "a",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
        "tools",
        "one or the other",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
        "messages.0.tool_calls.0.function",
        "the name of a tool",
    ),
    ({"messages": USER, "response_format": {"type": "xml"}}, "response_format", "json_schema"),
    (
        {"messages": USER, "response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "expected json_schema.schema",
    ),
    (
        {
            "messages": USER,
            "response_format": {"type": "json_schema", "json_schema": {"schema": []}},
        },
        "response_format.json_schema.schema",
        "should be an object",
    ),
    (
        {
            "messages": USER,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"items": "objct"}},
            },
        },
        "response_format",
        "no schema at #/items",
    ),
    ({"messages": USER, "regex": "[a-"}, "regex", "unclosed character class"),
    ({"messages": USER, "ebnf": "root = a"}, "ebnf", "the ebnf cannot be used"),
    ({"messages": USER, "ebnf": "root ::= " + "(" * 900 + '"a"'}, "ebnf", "cannot be used"),
    ({"messages": USER, "ebnf": "a", "regex": "a"}, "ebnf", "expected one of them"),
    ({"messages": USER, "regex": "a", "min_tokens": 2}, "min_tokens", "leave one of them out"),
    ({"messages": USER, "max_tokens": -1}, "max_tokens", "is -1; expected 0 to"),
    (
        {"messages": [USER[0] | {"content": "x " * CONTEXT}]},
        "messages",
        f"context length is {CONTEXT}",
    ),
]
CASES = [(COMPLETIONS, *case) for case in BAD_COMPLETIONS] + [(CHAT, *c) for c in BAD_CHATS]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_named_and_the_next_request_works(
    connect: Connect, stream: bool
) -> None:
    async with connect() as client:
        for path, body, param, complaint in CASES:
            if stream and body.keys() & {"stream", "stream_options", "prompt_logprobs"}:
                continue
            reply = await post(client, path, body | ({"stream": True} if stream else {}))
            error = reply.json()["error"]
            case = f"{path} {str(body)[:200]} -> {error}"
            assert reply.status_code == 400, case
            assert error["type"] == "invalid_request_error", case
            assert error["param"] == param, case
            assert complaint in error["message"], case
            assert len(error["message"]) < 400, case
        await still_works(client)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    """Post a body as Python's own json writes it, NaN and all: clients do send that."""
    return await client.post(path, content=json.dumps(body).encode(), headers=JSON)


async def still_works(client: httpx.AsyncClient) -> None:
    reply = await client.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 40})
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["text"] == "hello"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_00,
        b"[1]",
        b"null",
        b'"text"',
        b'{"prompt": "x"} {}',
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_body_that_is_no_json_object_is_refused(
    connect: Connect, path: str, body: bytes
) -> None:
    async with connect() as client:
        reply = await client.post(path, content=body, headers=JSON)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_request"
        assert "body" in reply.json()["error"]["message"]
        await still_works(client)


@pytest.mark.parametrize("declared", [True, False])
async def test_an_oversized_body_is_refused_whether_or_not_it_says_so(
    connect: Connect, declared: bool
) -> None:
    body = b'{"prompt": "' + b"x" * 30_000 + b'"}'

    async def in_parts():  # type: ignore[no-untyped-def]
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    async with connect() as client:
        sent = body if declared else in_parts()
        reply = await client.post(COMPLETIONS, content=sent, headers=JSON)
        assert reply.status_code == 413
        assert "larger than 20000 bytes" in reply.json()["error"]["message"]
        await still_works(client)


async def test_an_unknown_model_path_or_method_is_an_error_in_openais_shape(
    connect: Connect,
) -> None:
    async with connect() as client:
        unknown = await client.post(COMPLETIONS, json={"model": "other", "prompt": "x"})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["param"] == "model"
        nowhere = await client.post("/v1/nothing", json={})
        assert nowhere.status_code == 404
        assert nowhere.json()["error"]["code"] == "not_found"
        method = await client.get(COMPLETIONS)
        assert method.status_code == 405
        assert method.headers["allow"] == "POST"
        await still_works(client)


async def test_nulls_are_ignored(connect: Connect) -> None:
    body = {"prompt": "hello", "max_tokens": 40, "ignore_eos": None, "stop": None, "n": None}
    body |= {"temperature": None, "seed": None, "logprobs": None, "stream": None, "top_p": None}
    async with connect() as client:
        reply = await client.post(COMPLETIONS, json=body)
    assert reply.status_code == 200


async def test_a_fault_of_ours_is_a_500_that_shows_no_internals(
    connect: Connect, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        with monkeypatch.context() as patch:
            patch.setattr(backend, "models", lambda: 1 / 0)
            reply = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "server_error"
        assert "division" not in reply.text
        await still_works(client)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
FIELDS = sorted({*BY_PLACE[FieldPlace.COMPLETIONS], *BY_PLACE[FieldPlace.CHAT]})


# Collecting strings of all Unicode is slow the first time, and the app keeps no state.
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=150, suppress_health_check=HEALTH, deadline=None)
@given(
    path=st.sampled_from([COMPLETIONS, CHAT]),
    body=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4),
)
def test_any_json_values_give_an_answer_or_a_clear_refusal(
    connect: Connect, path: str, body: dict[str, Any]
) -> None:
    full = {"prompt": "hello", "messages": USER} | body

    async def send() -> httpx.Response:
        async with connect() as client:
            return await post(client, path, full)

    reply = asyncio.run(send())
    assert reply.status_code in (200, 400, 404)
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]
