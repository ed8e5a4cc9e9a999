"""However a client of any API sends a conversation, its prompt is transformers'."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from conversation_draws import (
    TOOLS,
    Json,
    Turn,
    as_chat,
    as_messages,
    as_responses,
    draw_conversation,
)
from prompt_model import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TEMPLATES,
    Model,
    made_model,
    template_named,
)

FORMS = {CHAT: as_chat, MESSAGES: as_messages, RESPONSES: as_responses}
DRAWS = 63  # of each template: 504 in all


@dataclass(frozen=True)
class Traits:
    """The forms that a test template reads, for the reference."""

    objects: bool = True
    null: bool = False  # the content beside calls
    lists: bool = False
    only_lists: bool = False
    system: bool = True
    late_system: bool = True
    tools: bool = True


KNOWN = {
    "strict_objects": Traits(lists=True, late_system=False),
    "strict_text": Traits(late_system=False),
    "joined_arguments": Traits(objects=False),
    "null_beside_calls": Traits(objects=False, null=True),
    "text_or_object": Traits(),
    "calls_hide_text": Traits(tools=False),
    "turns_alternate": Traits(system=False, late_system=False),
    "only_parts": Traits(lists=True, only_lists=True),
}


@pytest.fixture(params=sorted(KNOWN))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    with made_model(tmp_path, template_named(name)) as model:
        yield model


def test_each_template_has_its_traits() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == KNOWN.keys()


async def test_every_form_of_a_conversation_has_the_ids_of_transformers(
    name: str, model: Model
) -> None:
    traits, rng = KNOWN[name], random.Random(f"{name} 1")
    with model.prompts() as prompts:
        for _ in range(DRAWS):
            turns = draw_conversation(rng, late_system=traits.late_system)
            messages = reference_messages(turns, traits)
            tools = TOOLS if traits.tools else None
            ids = (model.expected_null if traits.null else model.expected)(messages, tools)
            for path, form in FORMS.items():
                body = form(turns, rng)
                if not traits.tools:
                    del body["tools"]
                assert await prompts.ids(path, body) == ids, f"{path} {json.dumps(body)}"


def reference_messages(turns: list[Turn], traits: Traits) -> list[Json]:
    """Return messages in the form that the template reads."""
    messages = []
    waiting: list[str] = []
    for turn in turns:
        parts = [*waiting, *turn.parts]
        waiting = []
        if turn.role == "system" and not traits.system:
            waiting = parts
            continue
        content: Any = "\n".join(parts)
        if traits.only_lists or (traits.lists and len(parts) > 1):
            content = [{"type": "text", "text": part} for part in parts]
        message: Json = {"role": turn.role, "content": content}
        if turn.calls:
            if traits.null and not parts:
                message["content"] = None
            message["tool_calls"] = [
                {
                    "id": of_call,
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": arguments if traits.objects else as_text(arguments),
                    },
                }
                for of_call, name, arguments in turn.calls
            ]
        if turn.thoughts:
            message["reasoning_content"] = turn.thoughts
        if turn.role == "tool":
            message["tool_call_id"] = turn.of_call
        messages.append(message)
    return messages


def as_text(arguments: Json) -> str:
    return json.dumps(arguments, ensure_ascii=False)
