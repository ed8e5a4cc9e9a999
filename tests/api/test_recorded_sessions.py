"""Whole conversations as real clients sent them to a scripted model: each request is served with
what the model said, and its prompt goes on from the turn before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_backend
import httpx
import pytest
from clients.prefixes import continued
from clients.replies import said_by, said_in
from fake_backend import FakeBackend
from prompt_model import Model, made_model, template_named

from baton.api.http import make_app

FILES = sorted((Path(__file__).parent / "recorded" / "sessions").glob("*.json"))
CLIENTS = {
    "aider-chat",
    "anthropic",
    "claude-code",
    "cline",
    "codex",
    "instructor",
    "langchain",
    "litellm",
    "npm-ai",
    "npm-anthropic",
    "npm-openai",
    "openai",
    "openai-agents",
    "opencode",
    "pydantic-ai-slim",
    "qwen-code",
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """Yield a model with a strict template: text, arguments as objects, the system first."""
    monkeypatch.setattr(fake_backend, "CONTEXT", 100_000)
    with made_model(tmp_path, template_named("strict_text")) as model:
        yield model


def test_every_client_was_recorded() -> None:
    assert {path.stem for path in FILES} == CLIENTS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_session_is_served_with_what_the_model_said(path: Path, model: Model) -> None:
    backend = FakeBackend(model.tokenizer, per_event=5)
    transport = httpx.ASGITransport(make_app(backend, model.text))
    prompts: list[str] = []
    answers: list[str] = []
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        for number, request in enumerate(json.loads(path.read_text())["requests"]):
            backend.says = request["answer"]
            body: dict[str, Any] = request["body"]
            reply = await client.post(request["path"], json=body, headers=request["headers"])
            where = f"{path.name} {number}: {reply.text}"
            assert reply.status_code == 200, where
            assert reply.headers.get("x-baton-ignored", "") == request["ignored"], where
            if body.get("tools") and not _is_forced(body):
                assert said_in(request["path"], reply.text) == said_by(request["answer"]), where
            prompts.append(model.tokenizer.decode(backend.seen[-1].prompt_ids, False))
            answers.append(request["answer"])
            turn = continued(prompts, answers)
            found = None if turn is None else (turn[0], turn[1].value)
            expected = (request["continues"], request["kept"]) if "kept" in request else None
            assert found == expected, where


def _is_forced(body: dict[str, Any]) -> bool:
    return isinstance(body.get("tool_choice"), dict) and body["tool_choice"]["type"] != "auto"
