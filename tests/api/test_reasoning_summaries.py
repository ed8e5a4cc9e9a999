"""`/v1/responses` gives the reasoning as its summary to clients that ask for one."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import fake_backend
import openai
import pytest
from api.test_openai_client import connected
from fake_backend import Connect, FakeBackend, Serve
from kit.narrowing import of_type, present
from openai.types.responses import ResponseCompletedEvent, ResponseReasoningItem
from prompt_model import RESPONSES, Model, made_model, template_named

from baton.api.text_service import TextService
from baton.text.tokenizer import Tokenizer

SAID = "<think>So it is.</think>Fine."
ASKED = ({"summary": "auto"}, {"summary": "detailed"}, {"generate_summary": "concise"})
UNASKED: tuple[Any, ...] = (None, {}, {"summary": None}, {"summary": "none"}, {"effort": "high"})


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    with made_model(tmp_path, template_named("strict_text")) as model:
        yield model


@pytest.fixture
def text(model: Model) -> TextService:
    return model.text


@pytest.fixture
def tokenizer(model: Model) -> Tokenizer:
    return model.tokenizer


@pytest.mark.parametrize("per_event", [1, 500])
@pytest.mark.parametrize("reasoning", ASKED, ids=json.dumps)
async def test_reasoning_is_the_summary_whole_and_in_a_stream(
    backend: FakeBackend, serve: Serve, reasoning: Any, per_event: int
) -> None:
    backend.says, backend.per_event = SAID, per_event
    async with connected(serve) as client:
        whole = await client.responses.create(model="toy", input="hi", reasoning=reasoning)
        stream = await client.responses.create(
            model="toy", input="hi", reasoning=reasoning, stream=True
        )
        events = [event async for event in stream]
    final = of_type(ResponseCompletedEvent, events[-1]).response
    for reply in (whole, final):
        thought = of_type(ResponseReasoningItem, reply.output[0])
        assert [(part.type, part.text) for part in thought.summary] == [
            ("summary_text", "So it is.")
        ]
        assert present(thought.content)[0].text == "So it is."
        assert reply.output_text == "Fine." and len(reply.output) == 2
    about = [event for event in events if "reasoning_summary" in event.type]
    assert [kind for kind, _ in groupby(event.type for event in about)] == [
        f"response.reasoning_summary_{kind}"
        for kind in ("part.added", "text.delta", "text.done", "part.done")
    ]
    fields = [event.model_dump() for event in about]
    assert {(e["item_id"], e["output_index"], e["summary_index"]) for e in fields} == {
        (final.output[0].id, 0, 0)
    }
    assert (fields[0]["part"]["text"], fields[-1]["part"]["text"]) == ("", "So it is.")
    assert fields[-2]["text"] == "So it is."
    assert "".join(e["delta"] for e in fields if e["type"].endswith("delta")) == "So it is."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (done, _) = [e.item for e in events if e.type == "response.output_item.done"]
    assert done == final.output[0]
    added = [e.item for e in events if e.type == "response.output_item.added"]
    assert of_type(ResponseReasoningItem, added[0]).summary == []


@pytest.mark.parametrize("reasoning", UNASKED, ids=json.dumps)
async def test_there_is_no_summary_unasked(
    backend: FakeBackend, serve: Serve, reasoning: Any
) -> None:
    backend.says = SAID
    async with connected(serve) as client:
        whole = await client.responses.create(model="toy", input="hi", reasoning=reasoning)
        stream = await client.responses.create(
            model="toy", input="hi", reasoning=reasoning, stream=True
        )
        events = [event async for event in stream]
    for reply in (whole, of_type(ResponseCompletedEvent, events[-1]).response):
        assert of_type(ResponseReasoningItem, reply.output[0]).summary == []
    assert not [event.type for event in events if "summary" in event.type]


async def test_an_answer_without_reasoning_has_no_summary(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "Fine."
    async with connected(serve) as client:
        stream = await client.responses.create(
            model="toy", input="hi", reasoning={"summary": "auto"}, stream=True
        )
        events = [event async for event in stream]
    final = of_type(ResponseCompletedEvent, events[-1]).response
    assert [item.type for item in final.output] == ["message"]
    assert not [event.type for event in events if "summary" in event.type]


@pytest.mark.parametrize("left_out", ["", "content", "summary"])
async def test_a_turn_sent_back_with_its_summary_has_its_reasoning_once(
    model: Model, backend: FakeBackend, connect: Connect, left_out: str
) -> None:
    backend.says = SAID
    asked = {"role": "user", "content": "hi"}
    async with connect() as client:
        body = {"model": "toy", "input": [asked], "reasoning": {"summary": "auto"}}
        reply = openai.types.responses.Response(**(await client.post(RESPONSES, json=body)).json())
        thought, message = (item.model_dump() for item in reply.output)
        if left_out:
            thought[left_out] = []
        body["input"] = [asked, thought, message, asked]
        assert (await client.post(RESPONSES, json=body)).status_code == 200
    prompt = model.tokenizer.decode(backend.seen[-1].prompt_ids, False)
    assert prompt.count("So it is.") == 1
    assert f"{SAID}<|end|>" in prompt
