"""Replies of a server that accepts drafts at random: each says that it is not the model's."""

import json
from typing import Any

import pytest
from fake_backend import Connect, FakeBackend

HEADER = "x-baton-synthetic-acceptance"
CALLS: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9},
}
each_call = pytest.mark.parametrize("path", CALLS)


def said(value: Any) -> list[float]:
    """The values of the field, anywhere in JSON."""
    if isinstance(value, list):
        return [found for each in value for found in said(each)]
    if not isinstance(value, dict):
        return []
    own = [value["synthetic_acceptance"]] if "synthetic_acceptance" in value else []
    return own + [found for each in value.values() for found in said(each)]


@each_call
@pytest.mark.parametrize("streamed", [False, True])
async def test_every_reply_says_so_in_a_field_and_a_header(
    connect: Connect, backend: FakeBackend, path: str, streamed: bool
) -> None:
    backend.says = "the baton"
    for length in (0.0, 2.6):
        backend.synthetic = length
        async with connect() as client:
            reply = await client.post(path, json=CALLS[path] | {"stream": streamed})
        assert reply.status_code == 200, reply.text
        events = [reply.text]
        if streamed:
            lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
            events = [line for line in lines if line.startswith("{")]
        found = [value for event in events for value in said(json.loads(event))]
        if length:
            assert reply.headers[HEADER] == "2.6"
            assert {*found} == {2.6}
        else:
            assert HEADER not in reply.headers
            assert not found


async def test_replies_without_an_answer_have_the_header_too(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.synthetic = 3.0
    async with connect() as client:
        wrong = await client.post("/v1/completions", json={"prompt": 7.5})
        models = await client.get("/v1/models")
    assert (wrong.status_code, wrong.headers[HEADER]) == (400, "3")
    assert models.headers[HEADER] == "3"
