"""Reasoning ends when its budget is spent, and the answer follows."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import fake_backend
import pytest
from anthropic.types import TextBlock, ThinkingBlock
from fake_backend import FakeBackend, Serve
from kit.narrowing import of_type

from baton.api.backend import GenerateRequest
from baton.api.text_service import TextService
from baton.api.thinking_budget import BudgetedBackend
from baton.core.finish import Finished
from baton.core.grammar import GrammarKind
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TEMPLATE = """{%- for m in messages %}{{ m.role }}:{{ m.content }};{% endfor -%}
{%- if add_generation_prompt %}assistant:{% if begins %}<think>{% endif %}{% endif -%}
{# <think> </think> #}"""
HELLO: Any = [{"role": "user", "content": "hello"}]
CLOSE = "\n</think>\n\n"


class Thinker(FakeBackend):
    """Thinks for long; says `Seven.` where its prompt has ended the reasoning."""

    def _answer(self, request: GenerateRequest) -> tuple[list[int], Finished]:
        prompt = self.tokenizer.decode(request.prompt_ids)
        self.says = "Seven." if prompt.endswith(CLOSE) else self.thoughts
        return super()._answer(request)

    thoughts = "<think>" + "hm " * 200


@pytest.fixture
def thinker(tokenizer: Tokenizer) -> Thinker:
    return Thinker(tokenizer)


@pytest.fixture
def backend(thinker: Thinker, tokenizer: Tokenizer) -> BudgetedBackend:
    return BudgetedBackend(thinker, tokenizer)


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 600)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE))
    yield service
    service.close()


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with serve() as url:
        client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
        async with client:
            yield client


def limited(tokens: int) -> Any:
    return {"type": "enabled", "budget_tokens": tokens}


@pytest.mark.parametrize("begins", [True, False], ids=["begun", "not begun"])
@pytest.mark.parametrize("per_event", [1, 7, 500])
async def test_reasoning_beyond_its_budget_is_closed(
    thinker: Thinker, tokenizer: Tokenizer, serve: Serve, per_event: int, begins: bool
) -> None:
    thinker.per_event = per_event
    thinker.thoughts = "hm " * 200 if begins else "<think>" + "hm " * 200
    common: dict[str, Any] = dict(
        model="toy", max_tokens=150, messages=HELLO, thinking=limited(40),
        extra_body={"chat_template_kwargs": {"begins": begins}},
    )  # fmt: skip
    async with connected(serve) as client:
        whole = await client.messages.create(**common)
        async with client.messages.stream(**common) as stream:
            streamed = await stream.get_final_message()
    first, second = thinker.seen[:2]
    close = tokenizer.encode(CLOSE, add_special_tokens=False)
    thoughts = tuple(tokenizer.encode(thinker.thoughts)[:40])
    assert second.prompt_ids == (*first.prompt_ids, *thoughts, *close)
    assert second.sampling.max_tokens == 150 - 40 - len(close)
    assert second.client_id == first.request_id and first.request_id in thinker.cancelled
    for reply in (whole, streamed):
        thought, said = reply.content
        shown = tokenizer.decode(list(thoughts)).removeprefix("<think>")
        assert of_type(ThinkingBlock, thought).thinking == shown.rstrip()
        assert of_type(TextBlock, said).text == "Seven."
        assert reply.stop_reason == "end_turn"
        seven = len(tokenizer.encode("Seven."))
        assert reply.usage.output_tokens == 40 + len(close) + seven


async def test_reasoning_behind_a_special_token_has_its_budget_too(
    thinker: Thinker, serve: Serve
) -> None:
    thinker.thoughts = "<s>" + Thinker.thoughts
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=500, messages=HELLO, thinking=limited(40)
        )
    assert [block.type for block in reply.content] == ["thinking", "text"]
    assert len(thinker.seen) == 2 and reply.usage.output_tokens < 80


async def test_reasoning_that_ends_within_its_budget_is_left_alone(
    thinker: Thinker, serve: Serve
) -> None:
    thinker.thoughts = "<think>Short.</think>" + "and so on " * 30
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=300, messages=HELLO, thinking=limited(40)
        )
    assert len(thinker.seen) == 1
    thought, said = reply.content
    assert thought.type == "thinking" and thought.thinking == "Short."
    assert said.type == "text" and said.text.startswith("and so on and so on")


async def test_an_answer_without_room_for_more_is_not_closed(
    thinker: Thinker, serve: Serve
) -> None:
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=41, messages=HELLO, thinking=limited(40)
        )
    assert len(thinker.seen) == 1 and reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 41


@pytest.mark.parametrize("asked", ["What does <think> do?", "Write <think>"])
async def test_a_plain_answer_is_no_reasoning_whatever_names_the_mark(
    thinker: Thinker, serve: Serve, asked: str
) -> None:
    thinker.thoughts = "The <think> tag " + "goes on " * 15
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=300, thinking=limited(5),
            messages=[{"role": "user", "content": asked}],
        )  # fmt: skip
    assert len(thinker.seen) == 1 and not thinker.cancelled
    (said,) = reply.content
    assert said.type == "text" and said.text == thinker.thoughts


@pytest.mark.parametrize("budget", [-1, 0])
async def test_a_budget_that_cannot_be_is_refused(serve: Serve, budget: int) -> None:
    async with connected(serve) as client:
        with pytest.raises(anthropic.BadRequestError, match=f"budget_tokens is {budget}; expected"):
            await client.messages.create(
                model="toy", max_tokens=100, messages=HELLO, thinking=limited(budget)
            )


async def test_a_budget_beyond_max_tokens_is_kept_by_that(thinker: Thinker, serve: Serve) -> None:
    async with connected(serve) as client:
        await client.messages.create(
            model="toy", max_tokens=100, messages=HELLO, thinking=limited(100)
        )
    assert thinker.seen[0].thinking is None


async def test_a_model_without_marks_of_reasoning_leaves_a_budget_out(
    thinker: Thinker, serve: Serve, text: TextService
) -> None:
    text.reasoning = None
    async with connected(serve) as client:
        reply = await client.messages.with_raw_response.create(
            model="toy", max_tokens=100, messages=HELLO, thinking=limited(40)
        )
    assert reply.headers["x-baton-ignored"] == "thinking.budget_tokens"
    assert thinker.seen[0].thinking is None


async def test_behind_a_spent_budget_a_form_holds_alone(
    thinker: Thinker, tokenizer: Tokenizer, serve: Serve
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    async with connected(serve) as client:
        reply = await client.messages.create(
            model="toy", max_tokens=150, messages=HELLO, thinking=limited(40),
            extra_body={"output_config": {"format": form}},
        )  # fmt: skip
    assert [block.type for block in reply.content] == ["thinking", "text"]
    first, rest = thinker.seen
    assert first.sampling.grammar is not None and rest.sampling.grammar is not None
    assert first.sampling.grammar.kind is GrammarKind.LARK
    assert rest.sampling.grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(rest.sampling.grammar.text) == schema
