"""Bodies as real clients sent them, recorded by a server that they took for OpenAI's, Anthropic's
or SGLang's: each is served."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from api.test_chat_tools import TEMPLATE
from fake_backend import Connect, FakeBackend

from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

CLIENTS = (
    "openai",
    "anthropic",
    "langchain-openai",
    "litellm",
    "open-webui",
    "vllm-bench",
    "sglang-bench",
)
RECORDED = Path(__file__).parent / "recorded"
FILES = sorted(RECORDED.glob("*.json"))
CASES = [
    pytest.param(request, id=f"{path.stem} {request['name']}")
    for path in FILES
    for request in json.loads(path.read_text())["requests"]
]


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 2000)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


def test_every_client_was_recorded() -> None:
    assert {path.stem for path in FILES} == set(CLIENTS)


@pytest.mark.parametrize("request_", CASES)
async def test_it_is_served(
    connect: Connect, backend: FakeBackend, request_: dict[str, Any]
) -> None:
    async with connect() as client:
        reply = await client.post(request_["path"], json=request_["body"])
    assert reply.status_code == 200, reply.text
    if request_["body"].get("stream"):
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert '"error":{' not in reply.text
        assert reply.text.count("data: ") > 2
    else:
        assert "error" not in reply.json() or reply.json()["error"] is None
    asked = request_["path"].endswith("count_tokens")
    assert bool(backend.seen) is not asked
