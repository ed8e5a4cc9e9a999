"""The frames of our own that a request and a token run through. Each costs CPU time, and no other
test sees a pass that is added here and there.

A bound that a change needs to raise says so in that change.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_backend import FakeBackend
from frame_count import FrameCount
from starlette.types import ASGIApp, Message

from baton.api.backend import GenerateRequest, ModelInfo, TokenEvent
from baton.api.disconnect import DEPARTURE
from baton.api.http import make_app
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.bench.sessions.chat_model import write_chat_model
from baton.core.finish import End, Finished, FinishReason, Usage
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

WAIT_S = 60.0
TOKENS = 64
HELLO = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class ScriptedBackend(FakeBackend):
    """Gives each token in an event of its own, and computes nothing."""

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("toy", 1 << 12, self.tokenizer.vocab_size)]

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        count = request.sampling.max_tokens
        (token,) = self.tokenizer.encode("x")
        for index in range(count):
            yield TokenEvent(index, (token,), self._logprobs(request, [token]))
        yield Finished(End(FinishReason.LENGTH), usage=Usage(len(request.prompt_ids), count))


class NoDeparture:
    """A client that stays."""

    def watch(self, leave: Callable[[], None]) -> None:
        pass

    async def ignore(self) -> None:
        pass


async def post(app: ASGIApp, path: str, body: bytes) -> bytes:
    """Return the body of the reply, which must be 200."""
    sent: list[Message] = []
    left = asyncio.Event()
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for part in parts:
            return part
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        "extensions": {DEPARTURE: NoDeparture()},
    }  # fmt: skip
    async with asyncio.timeout(WAIT_S):
        await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    return b"".join(each.get("body", b"") for each in sent[1:])


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    folder = write_chat_model(tmp_path_factory.mktemp("chat") / "model")
    tokenizer = Tokenizer.from_folder(folder)
    text = TextService(tokenizer, ChatTemplate.from_folder(folder))
    backend = ScriptedBackend(tokenizer)
    yield make_app(backend, text, more_routes=sglang_routes(backend, text))
    text.close()


async def frames(app: ASGIApp, path: str, body: dict[str, Any]) -> int:
    """Return the frames of one request, of which others before it have warmed all caches."""
    raw = json.dumps(body).encode()
    for _ in range(2):
        await post(app, path, raw)
    with FrameCount() as counted:
        await post(app, path, raw)
    return counted.frames


REQUESTS = [
    ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 1}}, 142),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 1}, 197),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}, 280),
]


@pytest.mark.parametrize(("path", "body", "most"), REQUESTS)
async def test_a_request_passes_few_frames(
    app: ASGIApp, path: str, body: dict[str, Any], most: int
) -> None:
    found = await frames(app, path, body)
    assert found <= most


STREAMS = [
    ("/v1/completions", {"prompt": "hello"}, 11),
    ("/v1/completions", {"prompt": "hello", "logprobs": 5}, 17),
    ("/v1/chat/completions", {"messages": HELLO}, 15),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [TOOL]}, 15),
]


@pytest.mark.parametrize(("path", "body", "most"), STREAMS)
async def test_a_token_of_a_stream_passes_few_frames(
    app: ASGIApp, path: str, body: dict[str, Any], most: float
) -> None:
    few, many = [
        await frames(app, path, {**body, "max_tokens": count, "stream": True})
        for count in (TOKENS, 2 * TOKENS)
    ]
    assert (many - few) / TOKENS <= most
