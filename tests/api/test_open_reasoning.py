"""Reasoning is open where the template's last words open it, whatever the messages say."""

from collections.abc import Iterator
from typing import Any

import fake_backend
import pytest
from api.test_openai_client import connected
from fake_backend import FakeBackend, Serve
from openai import AsyncStream

from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

_TURNS = "{%- for m in messages %}{{ m.role }}:{{ m.content }};{% endfor -%}"
_ASKED = "{%- if add_generation_prompt %}assistant:OPENING{% endif -%}"
_MARKS = "{# <think> </think> #}"
FREE = _TURNS + _ASKED.replace("OPENING", "") + _MARKS
OPENS = _TURNS + _ASKED.replace("OPENING", "<think>\n") + _MARKS
CLOSES = _TURNS + _ASKED.replace("OPENING", "<think>\n\n</think>\n\n") + _MARKS
UNASKED = _TURNS + "assistant:<think>\n" + _MARKS
BARE = "{%- for m in messages %}{{ m.content }}{% endfor -%}" + _MARKS
# Mistral's templates put the system's text behind the user's.
SYSTEM_LAST = (
    "{{ messages[-1].content }}{{ messages[0].content }}" + _ASKED.replace("OPENING", "") + _MARKS
)

QUESTION = "What does <think> do?"
TALKS: dict[str, Any] = {
    "user": [{"role": "user", "content": QUESTION}],
    "user's last word": [{"role": "user", "content": "What is <think>"}],
    "closed by the user": [{"role": "user", "content": "Is </think> the end?"}],
    "system": [
        {"role": "system", "content": "Write <think>"},
        {"role": "user", "content": "hello"},
    ],
    "earlier answer": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "A <think> tag."},
        {"role": "user", "content": "more"},
    ],
    "tool": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1 <think> 2"},
    ],
}
ANSWER = "It marks <think> thoughts."


@pytest.fixture
def template() -> str:
    return FREE


@pytest.fixture
def text(
    tokenizer: Tokenizer, template: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 900)
    service = TextService(tokenizer, ChatTemplate(template))
    yield service
    service.close()


async def answered(
    serve: Serve, messages: Any, stream: bool = False, **more: Any
) -> tuple[str, str]:
    """Return the reasoning and the content of an answer."""
    async with connected(serve) as client:
        made = await client.chat.completions.create(
            model="toy", messages=messages, stream=stream, extra_body=more
        )
        if isinstance(made, AsyncStream):
            deltas = [c.choices[0].delta.model_dump() async for c in made if c.choices]
        else:
            deltas = [made.choices[0].message.model_dump()]
    reasoning, content = (
        "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning_content", "content")
    )
    return reasoning, content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", [FREE, CLOSES, SYSTEM_LAST, BARE])
async def test_a_message_that_names_the_mark_gets_an_answer(
    backend: FakeBackend, serve: Serve, talk: str, stream: bool
) -> None:
    backend.says = ANSWER
    assert await answered(serve, TALKS[talk], stream) == ("", ANSWER)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", [OPENS, UNASKED])
async def test_a_template_that_opens_reasoning_is_believed(
    backend: FakeBackend, serve: Serve, talk: str
) -> None:
    backend.says = f"hm</think>\n\n{ANSWER}"
    assert await answered(serve, TALKS[talk]) == ("hm", ANSWER)


@pytest.mark.parametrize("talk", TALKS)
async def test_an_answer_may_begin_with_reasoning(
    backend: FakeBackend, serve: Serve, talk: str
) -> None:
    backend.says = f"<think>hm</think>\n\n{ANSWER}"
    assert await answered(serve, TALKS[talk]) == ("hm", ANSWER)


@pytest.mark.parametrize("template", [CLOSES])
async def test_closed_reasoning_is_not_begun_by_the_answer(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "<think> is the tag."
    assert await answered(serve, TALKS["user"]) == ("", backend.says)


@pytest.mark.parametrize(
    ("begun", "says", "expected"),
    [
        ("<think>So", " on</think>\n\nYes.", ("on", "Yes.")),
        ("<think>So</think> Yes", " <think>", ("", " <think>")),
        ("The <think> tag", " is one.", ("", " is one.")),
    ],
)
async def test_an_answer_that_goes_on_is_where_its_beginning_left_it(
    backend: FakeBackend, serve: Serve, begun: str, says: str, expected: tuple[str, str]
) -> None:
    backend.says = says
    messages = [*TALKS["user"], {"role": "assistant", "content": begun}]
    reasoning, content = await answered(
        serve, messages, continue_final_message=True, add_generation_prompt=False
    )
    assert (reasoning.strip(), content) == expected
