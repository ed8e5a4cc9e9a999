"""Requests of chat completions turn thinking on and off by the fields of other servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from fake_backend import Connect, FakeBackend
from prompt_model import CHAT, Model, made_model

from baton.api.text_service import TextService
from baton.text.tokenizer import Tokenizer

IGNORED = "x-baton-ignored"
HELLO = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "[{{ enable_thinking | default('unset') }}|{{ thinking | default('unset') }}"
    "|{{ reasoning_effort | default('unset') }}]"
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    with made_model(tmp_path, TEMPLATE) as model:
        yield model


@pytest.fixture
def text(model: Model) -> TextService:
    return model.text


@pytest.fixture
def tokenizer(model: Model) -> Tokenizer:
    return model.tokenizer


ON, OFF, UNSET = "[True|True|unset]", "[False|False|unset]", "[unset|unset|unset]"


@pytest.mark.parametrize(
    ("body", "shown", "ignored"),
    [
        ({}, UNSET, ""),
        ({"thinking": {"type": "disabled"}}, OFF, ""),
        ({"thinking": {"type": "enabled"}}, ON, ""),
        ({"thinking": {"type": "adaptive"}}, ON, ""),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, ON, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "zz": 9}}, ON, "thinking.zz"),
        ({"thinking": False}, OFF, ""),
        ({"thinking": {}}, UNSET, ""),
        ({"thinking": None, "enable_thinking": None, "reasoning": None}, UNSET, ""),
        ({"enable_thinking": False}, OFF, ""),
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, ON, ""),
        ({"reasoning": {"enabled": False}}, OFF, ""),
        ({"reasoning": {"effort": "low"}}, "[True|True|low]", ""),
        ({"reasoning": {"effort": "none"}}, "[False|False|none]", ""),
        ({"reasoning": {"effort": "low", "enabled": False}}, "[False|False|low]", ""),
        ({"reasoning": {"effort": "low", "exclude": False}}, "[True|True|low]", ""),
        ({"reasoning": {"max_tokens": 9, "exclude": True}}, UNSET,
         "reasoning.max_tokens, reasoning.exclude"),
        ({"reasoning": {}}, UNSET, ""),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "[True|True|high]", ""),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, "[False|False|high]", ""),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
         "[True|False|unset]", ""),
    ],
    ids=str,
)  # fmt: skip
async def test_each_field_sets_the_templates_variables(
    model: Model,
    backend: FakeBackend,
    connect: Connect,
    body: dict[str, Any],
    shown: str,
    ignored: str,
) -> None:
    async with connect() as client:
        reply = await client.post(CHAT, json={"messages": HELLO} | body)
    assert reply.status_code == 200, reply.text
    assert reply.headers.get(IGNORED, "") == ignored
    assert model.tokenizer.decode(backend.seen[-1].prompt_ids, False) == f"hi{shown}"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thinking": {"type": "maybe"}}, "thinking"),
        ({"thinking": {"budget_tokens": 9}}, "thinking"),
        ({"thinking": {"tpye": "enabled"}}, "thinking.tpye"),
        ({"thinking": "enabled"}, "thinking"),
        ({"reasoning": "low"}, "reasoning"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning": {"enabled": "yes"}}, "reasoning.enabled"),
        ({"enable_thinking": "no"}, "enable_thinking"),
    ],
    ids=str,
)
async def test_what_says_neither_is_refused_by_name(
    connect: Connect, body: dict[str, Any], param: str
) -> None:
    async with connect() as client:
        reply = await client.post(CHAT, json={"messages": HELLO} | body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "thinking.budget_tokens"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
    ],
    ids=str,
)
async def test_a_server_that_leaves_nothing_out_refuses_the_rest(
    connect_strict: Connect, body: dict[str, Any], param: str
) -> None:
    async with connect_strict() as client:
        reply = await client.post(CHAT, json={"messages": HELLO} | body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
