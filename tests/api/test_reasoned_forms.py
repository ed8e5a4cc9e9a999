"""Grammars begin behind reasoning, which is free."""

from collections.abc import Iterator
from typing import Any

import fake_backend
import pytest
from api.test_open_reasoning import CLOSES, FREE, OPENS
from api.test_openai_client import connected
from fake_backend import FakeBackend, Serve
from openai import AsyncStream

from baton.api.text_service import TextService
from baton.core.grammar import Grammar
from baton.text.chat_template import ChatTemplate
from baton.text.errors import GrammarError
from baton.text.grammar import GrammarCompiler
from baton.text.tokenizer import Tokenizer

HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
THOUGHT = 'First {"a": "x"}, {} and [.'
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "response_format": ({"response_format": JSON_FORMAT}, '{"a":7}'),
    "guided_json": ({"guided_json": SCHEMA}, '{"a":7}'),
    "regex": ({"regex": "x/[yz]{2}"}, "x/yz"),
    "choice": ({"guided_choice": ["yes", "no}"]}, "no}"),
    "lark": ({"guided_grammar": 'start: "a" more\nmore: /b+/'}, "abb"),
    "ebnf": ({"ebnf": 'root ::= "a" more\nmore ::= "b"+'}, "abb"),
    "required": (
        {"tools": TOOLS, "tool_choice": "required"},
        '[{"name":"add","arguments":{"a":7}}]',
    ),
}


@pytest.fixture
def template() -> str:
    return OPENS


@pytest.fixture
def text(
    tokenizer: Tokenizer, template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 900)
    service = TextService(tokenizer, ChatTemplate(template))
    yield service
    service.close()


def fits(tokenizer: Tokenizer, grammar: Grammar | None, answer: str) -> bool:
    """Return True if `answer` is a whole answer by the grammar."""
    assert grammar is not None
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    compiled = compiler.compile(grammar)
    try:
        state = compiled.start(tokenizer.encode(answer, add_special_tokens=False))
        if not state.ended:
            state.push(min(tokenizer.stop_ids))
    except GrammarError:
        return False
    return True


async def asked(
    backend: FakeBackend, serve: Serve, says: str, more: dict[str, Any], stream: bool = False
) -> dict[str, str]:
    """Return the reasoning, the content and the calls of an answer, as texts."""
    backend.says = says
    async with connected(serve) as client:
        made = await client.chat.completions.create(
            model="toy", messages=HELLO, stream=stream, extra_body=more
        )
        if isinstance(made, AsyncStream):
            deltas = [c.choices[0].delta.model_dump() async for c in made if c.choices]
        else:
            deltas = [made.choices[0].message.model_dump()]
    found = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning_content", "content")
    }
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    found["call"] = "".join((call["name"] or "") + call["arguments"] for call in calls)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_open_reasoning_is_free_and_the_form_follows(
    backend: FakeBackend, serve: Serve, form: str, stream: bool
) -> None:
    more, answer = FORMS[form]
    says = f"{THOUGHT}\n</think>\n\n{answer}"
    found = await asked(backend, serve, says, more, stream)
    called = form == "required"
    assert found == {
        "reasoning_content": THOUGHT,
        "content": "" if called else answer,
        "call": 'add{"a":7}' if called else "",
    }
    grammar = backend.seen[0].sampling.grammar
    for whole in (says, f"</think>{answer}", f"{THOUGHT}</think> {answer}"):
        assert fits(backend.tokenizer, grammar, whole)
    for wrong in (
        answer,
        THOUGHT,
        f"{THOUGHT}</think>",
        f"{says} more",
        f"{THOUGHT}</think>{says}",
    ):
        assert not fits(backend.tokenizer, grammar, wrong)


@pytest.mark.parametrize("template", [FREE])
@pytest.mark.parametrize("form", FORMS)
async def test_reasoning_may_come_before_the_form_or_not(
    backend: FakeBackend, serve: Serve, form: str
) -> None:
    more, answer = FORMS[form]
    shown = "call" if form == "required" else "content"
    expected = 'add{"a":7}' if form == "required" else answer
    thought = await asked(backend, serve, f"<think>{THOUGHT}</think>\n{answer}", more)
    assert (thought["reasoning_content"], thought[shown]) == (THOUGHT, expected)
    plain = await asked(backend, serve, answer, more)
    assert (plain["reasoning_content"], plain[shown]) == ("", expected)
    grammar = backend.seen[0].sampling.grammar
    assert fits(backend.tokenizer, grammar, f"<think>{THOUGHT}</think>{answer}")
    assert fits(backend.tokenizer, grammar, answer)
    assert not fits(backend.tokenizer, grammar, f"{THOUGHT}</think>{answer}")


@pytest.mark.parametrize("template", [CLOSES])
@pytest.mark.parametrize("form", FORMS)
async def test_closed_reasoning_leaves_the_form_alone(
    backend: FakeBackend, serve: Serve, form: str
) -> None:
    more, answer = FORMS[form]
    await asked(backend, serve, answer, more)
    grammar = backend.seen[0].sampling.grammar
    assert fits(backend.tokenizer, grammar, answer)
    assert not fits(backend.tokenizer, grammar, f"{THOUGHT}</think>{answer}")


@pytest.mark.parametrize("form", FORMS)
async def test_reasoning_that_is_not_separate_is_content(
    backend: FakeBackend, serve: Serve, form: str
) -> None:
    more, answer = FORMS[form]
    says = f"{THOUGHT}</think>{answer}"
    found = await asked(backend, serve, says, more | {"separate_reasoning": False})
    called = form == "required"
    assert found == {
        "reasoning_content": "",
        "content": THOUGHT if called else says,
        "call": 'add{"a":7}' if called else "",
    }


@pytest.mark.parametrize(("template", "says"), [
    (OPENS, f"{THOUGHT}</think>yes"), (FREE, f"<think>{THOUGHT}</think>yes"), (FREE, "yes"),
    (OPENS, THOUGHT),
])  # fmt: skip
@pytest.mark.parametrize("per_event", [1, 7, 500])
@pytest.mark.parametrize("n", [1, 2])
async def test_reasoning_is_counted_and_log_probabilities_belong_to_their_part(
    backend: FakeBackend, serve: Serve, says: str, per_event: int, n: int
) -> None:
    backend.per_event, backend.says = per_event, says
    ids = backend.tokenizer.encode(says, add_special_tokens=False)
    thought, _, answer = says.rpartition("</think>") if says != THOUGHT else (says, "", "")
    shown = len(backend.tokenizer.encode(answer, add_special_tokens=False))
    body = {"model": "toy", "messages": HELLO, "n": n, "logprobs": True, "max_tokens": 200}
    async with connected(serve) as client:
        whole = await client.chat.completions.create(**body)
        stream = await client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    for usage in (whole.usage, chunks[-1].usage):
        assert usage is not None and usage.completion_tokens == n * len(ids)
        details = usage.completion_tokens_details
        counted = 0 if details is None else details.reasoning_tokens
        assert counted == (n * (len(ids) - shown) if thought else 0)
    for index in range(n):
        given = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        for found in ([whole.choices[index].logprobs], [each.logprobs for each in given]):
            parts = [each.model_dump() for each in found if each is not None]
            content = [entry["token"] for part in parts for entry in part["content"] or ()]
            reasoning = [e["token"] for p in parts for e in p.get("reasoning_content") or ()]
            assert "".join(content) == answer
            assert "".join(reasoning) == says.removesuffix(answer)


@pytest.mark.parametrize("per_event", [1, 500])
@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_reasoning_that_is_content_are_those_of_content(
    backend: FakeBackend, serve: Serve, stream: bool, per_event: int
) -> None:
    backend.per_event, backend.says = per_event, f"{THOUGHT}</think>yes"
    async with connected(serve) as client:
        made: Any = await client.chat.completions.create(
            model="toy", messages=HELLO, logprobs=True, stream=stream,
            extra_body={"separate_reasoning": False},
        )  # fmt: skip
        chunks = [chunk async for chunk in made] if stream else [made]
    found = [c.choices[0].logprobs.model_dump() for c in chunks if c.choices[0].logprobs]
    assert not any(part.get("reasoning_content") for part in found)
    assert "".join(entry["token"] for part in found for entry in part["content"]) == backend.says
