"""Requests that leave sampling values out have those of the model."""

from dataclasses import replace
from typing import Any

import pytest
from fake_backend import Connect, FakeBackend

from baton.api.backend import ModelInfo

HELLO = [{"role": "user", "content": "hello"}]
DEFAULTS = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.75,
    "min_p": 0.125,
    "repetition_penalty": 1.25,
}
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 3}),
    ("/generate", {"text": "hello"}),
]


@pytest.fixture(autouse=True)
def defaults(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    models = backend.models

    async def with_defaults() -> list[ModelInfo]:
        return [replace(model, sampling_defaults=DEFAULTS) for model in await models()]

    monkeypatch.setattr(backend, "models", with_defaults)


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_what_a_request_leaves_out_is_the_models(
    path: str, body: dict[str, Any], connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        for given in ({}, {"temperature": None}, {"temperature": 0, "top_k": 3}):
            fields = {"sampling_params": given} if path == "/generate" else given
            reply = await client.post(path, json=body | fields)
            assert reply.status_code == 200, reply.text
            asked = backend.seen[-1].sampling
            chosen = {name: value for name, value in given.items() if value is not None}
            found = {name: getattr(asked, name) for name in DEFAULTS}
            assert found == DEFAULTS | chosen


async def test_the_other_name_of_a_field_counts_too(connect: Connect, backend: FakeBackend) -> None:
    async with connect() as client:
        body = {"prompt": "hello", "repeat_penalty": 1.5}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert backend.seen[-1].sampling.repetition_penalty == 1.5
