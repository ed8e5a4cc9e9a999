"""A long prompt holds nobody up, and one that cannot fit is refused before it is tokenised."""

import asyncio

import pytest
from fake_backend import CONTEXT, Connect, FakeBackend

from baton.api import text_service
from baton.api.text_service import TextService

USER = {"role": "user", "content": "x " * 400}


@pytest.fixture(autouse=True)
def _long_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_service, "LONG_CHARS", 500)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x " * 400}, "prompt"),
        ("/v1/chat/completions", {"messages": [USER]}, "messages"),
        ("/generate", {"text": "x " * 400}, "text"),
    ],
)
async def test_others_are_answered_while_a_long_prompt_is_tokenised(
    path: str,
    body: dict[str, object],
    param: str,
    connect: Connect,
    text: TextService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text.tokenizer, "longest_token", None)  # or it is refused at once
    assert text.large is not None
    async with connect() as client, text.large._short._turns.turn(0):  # as if by another long text
        long = asyncio.create_task(client.post(path, json=body))
        short = await client.post("/v1/completions", json={"prompt": "hello"})
        health = await client.get("/health")
        assert short.status_code == health.status_code == 200 and not long.done()
    async with connect() as client:
        reply = await long
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param and f"context length is {CONTEXT}" in error["message"]


async def test_a_prompt_that_cannot_fit_is_refused_unread(
    connect: Connect, text: TextService
) -> None:
    longest = text.tokenizer.longest_token
    assert longest is not None and text.large is not None
    fits = "a" * longest * CONTEXT
    async with connect() as client:
        reply = await client.post("/v1/completions", json={"prompt": fits + "a"})
        assert reply.status_code == 400
        assert f"at least {CONTEXT + 1} tokens" in reply.json()["error"]["message"]
        assert text.large._short._child is None, "it was tokenised"
        reply = await client.post("/v1/completions", json={"prompt": fits})
        assert "at least" not in reply.json()["error"]["message"]
        assert text.large._short._child is not None


async def test_a_long_prompt_that_is_to_be_cut_is_tokenised_whole(
    connect: Connect, backend: FakeBackend, text: TextService
) -> None:
    prompt = ("hello world " * 5000)[:15000]
    async with connect() as client:
        reply = await client.post(
            "/v1/completions",
            json={"prompt": prompt, "truncate_prompt_tokens": 7, "max_tokens": 1},
        )
    assert reply.status_code == 200, reply.text
    whole = text.tokenizer.encode(prompt)
    assert backend.seen[0].prompt_ids == tuple(whole[-7:])
