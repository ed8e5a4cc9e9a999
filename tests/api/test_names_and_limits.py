"""The names of a model, limits beyond its context, and errors that clients recognise."""

from pathlib import Path
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import CONTEXT, Connect, FakeBackend, Serve

from baton.api.backend import ModelInfo
from baton.api.text_service import served_model
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.model_folder import served_names

HELLO = [{"role": "user", "content": "hello"}]
IGNORED = "x-baton-ignored"
ROOM: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HELLO}, "max_tokens"),
    ("/v1/chat/completions", {"messages": HELLO}, "max_completion_tokens"),
    ("/v1/completions", {"prompt": "hello"}, "max_tokens"),
    ("/v1/responses", {"input": "hello"}, "max_output_tokens"),
    ("/v1/messages", {"messages": HELLO}, "max_tokens"),
    ("/generate", {"text": "hello"}, "sampling_params.max_new_tokens"),
]


@pytest.mark.parametrize(("path", "body", "limit"), ROOM)
async def test_a_limit_beyond_the_context_is_cut_to_the_room_and_named(
    path: str, body: dict[str, Any], limit: str, connect: Connect, backend: FakeBackend
) -> None:
    outer, _, inner = limit.partition(".")
    async with connect() as client:
        for wanted in (32_000, CONTEXT, 3):
            given = {outer: {inner: wanted} if inner else wanted}
            reply = await client.post(path, json=body | given)
            assert reply.status_code == 200, reply.text
            asked = backend.seen[-1]
            room = CONTEXT - len(asked.prompt_ids)
            assert asked.sampling.max_tokens == min(wanted, room)
            assert reply.headers.get(IGNORED) == (limit if wanted > room else None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * CONTEXT}]}),
        ("/v1/completions", {"prompt": [65] * CONTEXT}),
        ("/v1/responses", {"input": "hello " * 9 * CONTEXT}),
    ],
)
async def test_a_prompt_that_is_too_long_has_openais_code_and_words(
    path: str, body: dict[str, Any], connect: Connect
) -> None:
    async with connect() as client:
        reply = await client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"This model's maximum context length is {CONTEXT} tokens" in error["message"]


async def test_a_prompt_that_is_too_long_has_anthropics_words(connect: Connect) -> None:
    body = {"messages": [{"role": "user", "content": "x " * CONTEXT}], "max_tokens": 9}
    async with connect() as client:
        reply = await client.post("/v1/messages", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("prompt is too long: ")
    tokens, most = error["message"].removeprefix("prompt is too long: ").split(" tokens > ")
    assert int(tokens) > int(most.split(" maximum")[0])


async def test_a_model_that_is_not_served_has_openais_code(connect: Connect) -> None:
    async with connect() as client:
        reply = await client.post("/v1/completions", json={"prompt": "x", "model": "gpt-4o"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_request_whose_own_time_is_over_is_not_to_be_sent_again(
    backend: FakeBackend, serve: Serve
) -> None:
    async with serve() as url, httpx.AsyncClient(base_url=url) as client:
        for code, told in ((ErrorCode.DEADLINE_EXCEEDED, "false"), (ErrorCode.UNAVAILABLE, None)):
            backend.fail_first = ApiError(code, "over")
            reply = await client.post("/v1/completions", json={"prompt": "x"})
            assert reply.status_code in (503, 504)
            assert reply.headers.get("x-should-retry") == told


@pytest.mark.parametrize(
    ("given", "main", "others"),
    [
        (None, "granite", ()),
        ("a", "a", ()),
        ("a, b,c", "a", ("b", "c")),
        ("*", "granite", ("*",)),
        ("*,a,b", "a", ("*", "b")),
    ],
)
def test_the_first_name_is_that_of_replies(
    given: str | None, main: str, others: tuple[str, ...]
) -> None:
    assert served_names(given, Path("/models/granite")) == (main, others)


def test_a_model_is_found_by_each_of_its_names() -> None:
    named = ModelInfo("a", 64, 300, other_names=("b",))
    assert all(served_model(name, [named]) is named for name in ("a", "b", "default", "", None))
    with pytest.raises(ApiError, match="'c' is not served here"):
        served_model("c", [named])
    anything = ModelInfo("a", 64, 300, other_names=("*",))
    assert served_model("claude-sonnet-4-5", [anything]) is anything


async def test_the_list_of_models_has_every_name(
    connect: Connect, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = await backend.models()

    async def models() -> list[ModelInfo]:
        return [ModelInfo("a", model.max_model_len, model.vocab_size, other_names=("b", "*"))]

    monkeypatch.setattr(backend, "models", models)
    async with connect() as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["a", "b"]
        for name in ("a", "b", "anything"):
            reply = await client.post("/v1/completions", json={"prompt": "x", "model": name})
            assert (reply.status_code, reply.json()["model"]) == (200, "a")
    assert fake_backend.CONTEXT == model.max_model_len
