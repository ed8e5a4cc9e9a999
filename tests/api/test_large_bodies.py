"""A large body, which is parsed in a process of its own, gets the same answer as a small one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import CONTEXT, Connect, FakeBackend, Serve
from kit.polling import until

from baton.api import large_child as child
from baton.api import request_body
from baton.api.large.held_bytes import BodyFile
from baton.api.large.job import Parsed, ParseJob
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
CHAT_TOOL = {"type": "function", "function": TOOL}
ANTHROPIC_TOOL = {"name": "f", "input_schema": TOOL["parameters"]}
FORCED = {"tools": [CHAT_TOOL], "tool_choice": "required"}
SENT_BACK = [
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "tool", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
    {"role": "developer", "content": "be brief"},
]
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hello world", "echo": True, "seed": 3, "stop": ["x", "y"]}),
    ("/v1/completions", {"prompt": "hello world", "echo": True, "logprobs": 1, "max_tokens": 2}),
    ("/v1/completions", {"prompt": ["hello", "world"], "n": 2, "logit_bias": {"5": 1.5}}),
    ("/v1/completions", {"prompt": [[1, 2, 3], [4]], "max_tokens": 3, "echo": True}),
    ("/v1/completions", {"prompt": [7, 8], "stream": True}),
    ("/v1/completions", {"prompt": "hello " * 50, "truncate_prompt_tokens": 3, "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5, "logprobs": True}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 9, **FORCED}),
    ("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {"a": [1]}, "n": 2}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "prediction": {"type": "content", "content": "hello world"}},
    ),
    ("/v1/chat/completions", {"messages": SENT_BACK}),
    ("/v1/chat/completions", {"messages": HELLO, "zz": 1, "tools": [{"type": "web_search"}]}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": CONTEXT}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": CONTEXT}),
    ("/v1/responses", {"input": "hello", "instructions": "be brief", "max_output_tokens": 4}),
    ("/v1/responses", {"input": [{"role": "user", "content": "hello"}], "stream": True}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "system": "be brief"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "stop_sequences": ["l"]}),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
    ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}),
    ("/generate", {"text": ["hello", "world"], "rid": ["a", "b"], "return_logprob": True}),
    ("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"n": 2}}),
    ("/generate", {"input_ids": [[1, 2], [3]], "stream": True}),
    ("/tokenize", {"prompt": "hello world", "return_token_strs": True}),
    ("/tokenize", {"messages": HELLO}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ""}),
    ("/v1/completions", {"prompt": []}),
    ("/v1/completions", {"prompt": [1, 1 << 40]}),
    ("/v1/completions", {"prompt": "hello " * CONTEXT * 4}),
    ("/v1/completions", {"prompt": list(range(CONTEXT * 2))}),
    ("/v1/completions", {"prompt": "hello", "max_token": 3}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": -1}),
    ("/v1/completions", {"prompt": "hello", "temperature": "hot"}),
    ("/v1/completions", {"prompt": "hello", "truncate_prompt_tokens": 0}),
    ("/v1/completions", {"prompt": "hello", "model": "another"}),
    ("/v1/chat/completions", {"messages": []}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "prediction": {"type": "content", "content": "a " * CONTEXT * 2}},
    ),
    ("/v1/chat/completions", {"messages": [{"content": "no role"}]}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [CHAT_TOOL]}),
    ("/v1/responses", {"input": "hello " * CONTEXT * 4}),
    ("/v1/responses", {"input": "hello", "previous_response_id": "resp_1"}),
    ("/v1/messages", {"messages": [{"role": "dog", "content": "x"}], "max_tokens": 5}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "tools": [ANTHROPIC_TOOL]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
    ("/generate", {"text": "hello", "input_ids": [1]}),
    ("/generate", {"input_ids": [-1]}),
    ("/generate", {"text": ["hello"] * 300, "sampling_params": [{}] * 300}),
    ("/tokenize", {}),
    ("/detokenize", {"tokens": [1 << 40]}),
]


@pytest.fixture(scope="module")
def text(folder: Path, tokenizer: Tokenizer) -> Iterator[TextService]:
    """One service, so that its processes start once."""
    service = TextService(tokenizer, ChatTemplate.from_folder(folder))
    yield service
    service.close()


LONG = {"prompt": "hello world " * 200_000}  # seconds of work
MADE_UP = {"id", "created", "created_at", "completed_at", "item_id", "call_id"}


def known(value: Any) -> Any:
    """Return a reply without what the server makes up."""
    if isinstance(value, dict):
        return {name: known(each) for name, each in value.items() if name not in MADE_UP}
    return [known(each) for each in value] if isinstance(value, list) else value


def events(reply: httpx.Response) -> Any:
    if "event-stream" not in reply.headers["content-type"]:
        return known(reply.json())
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [known(json.loads(line)) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(("path", "body"), ACCEPTED + REFUSED)
async def test_the_size_of_a_body_changes_nothing(
    path: str,
    body: dict[str, Any],
    connect: Connect,
    backend: FakeBackend,
    text: TextService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    assert text.large is not None
    parse, calls = text.large.parse, list[type]()

    async def counted(job: ParseJob, data: BodyFile) -> Parsed:
        calls.append(job.kind)
        return await parse(job, data)

    monkeypatch.setattr(text.large, "parse", counted)
    for large in (False, True):
        monkeypatch.setattr(request_body, "LARGE_BYTES", 0 if large else 1 << 20)
        backend.seen.clear()
        async with connect() as client:
            reply = await client.post(path, json=body)
        asked = [
            (seen.prompt_ids, seen.sampling, seen.client_id, seen.cache_salt, seen.prediction_ids)
            for seen in backend.seen
        ]
        ignored = reply.headers.get("x-baton-ignored")
        found.append((reply.status_code, ignored, events(reply), asked))
        assert len(calls) == large
    assert found[0] == found[1]
    assert found[0][0] == (200 if (path, body) in ACCEPTED else found[0][0])
    assert ((path, body) in ACCEPTED) == (found[0][0] == 200)


async def test_what_is_no_json_is_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "LARGE_BYTES", 0)
    for raw in (b"{", b"\xff\xfe", b"[" * 9000, b'{"prompt":' + b"9" * 9000 + b"}", b"12"):
        async with connect() as client:
            reply = await client.post(
                "/v1/completions", content=raw, headers={"content-type": "application/json"}
            )
        assert reply.status_code == 400, reply.text


async def test_a_body_may_be_large_for_its_prompts_alone(serve: Serve) -> None:
    """The rest comes back to the server's process, which reading it would hold up."""
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        for size, status in ((100_000, 200), (child.MAX_REST, 413)):
            body = {"prompt": "hello", "user": "x" * size}
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == status, reply.text
    assert "besides its prompts" in reply.json()["error"]["message"]


async def test_a_client_that_leaves_while_its_body_waits_costs_nothing(
    serve: Serve, text: TextService
) -> None:
    assert text.large is not None
    held, long = text.large._held, text.large._long
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        first = asyncio.create_task(client.post("/tokenize", json=LONG))
        await until(lambda: long._turns._taken and long._child is not None)
        before = long._child
        second = asyncio.create_task(client.post("/tokenize", json=LONG))
        await until(lambda: len(long._turns._waiting) == 1)
        assert held.files == 2 and held.bytes > 2 * len(LONG["prompt"])
        second.cancel()
        await until(lambda: held.files == 1)
        assert not first.done() and held.bytes < 2 * len(LONG["prompt"])
        reply = await first
        assert reply.json()["count"] == len(reply.json()["tokens"]) > 0
        assert long._child is before and held.files == held.bytes == 0


async def test_a_client_that_leaves_while_its_body_is_read_ends_that(
    serve: Serve, text: TextService
) -> None:
    assert text.large is not None
    held, long = text.large._held, text.large._long
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        task = asyncio.create_task(client.post("/tokenize", json=LONG))
        await until(lambda: long._turns._taken and long._child is not None)
        before = long._child
        task.cancel()
        await until(lambda: held.files == 0)
        assert before is not None and await asyncio.to_thread(before.wait, 60) != 0
        reply = await client.post("/tokenize", json={"prompt": "hello " * 20_000})
        assert reply.status_code == 200 and held.bytes == 0
