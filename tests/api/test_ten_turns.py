"""A conversation of ten turns through each API: what Baton answered is sent back unchanged, and the
prompt of each turn begins with the prompt and the answer of the turn before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_backend
import pytest
from clients.replies import said_by, said_in
from clients.scenarios import call, thought
from conversation_draws import TOOLS, Json
from engine.engines import PAGE, assert_clean, greedy, make_engine
from engine.hash_model import VOCAB, HashModel, hash_config
from prompt_model import CHAT, MESSAGES, RESPONSES, Model, made_model, template_named

ANSWERS = [
    thought("First I read both.") + "I look." + call("read", a="x.txt") + call("read", a="y.txt"),
    thought("y.txt is not there.") + call("edit", z={"k": [1, None]}, a="y.txt"),
    "It is there now.",
    thought("Hm, so.\nAgain.") + call("read", a="日本 \"q\" </b>\n"),
    call("read", a="") + call("edit") + call("read", z=1.5, a="z.txt"),
    thought("All of it.") + "Done: naïve café 😀",
    "Fine.",
    "Now the last." + call("edit", z=True, a="x.txt"),
    thought("It failed, so I stop."),
    "The end.",
]  # fmt: skip
FAILED = {"y.txt", "x.txt"}  # files whose edits and reads fail
SYSTEM, ASKED, GO_ON = "Be kind.", "Read x.txt and y.txt.", "Go on."


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """Yield a model whose template writes calls as the answers here do."""
    monkeypatch.setattr(fake_backend, "CONTEXT", 20_000)
    with made_model(tmp_path, template_named("strict_text")) as model:
        yield model


def result_of(arguments: Json) -> tuple[str, bool]:
    """Return a call's result, and true if it failed."""
    if arguments.get("a") in FAILED:
        return "no such file", True
    return json.dumps(arguments), False


def first_body(path: str) -> tuple[Json, list[Any]]:
    """Return a body, and its list of messages or items, which grows."""
    functions = [tool["function"] for tool in TOOLS]
    turns: list[Any] = [{"role": "user", "content": ASKED}]
    if path == MESSAGES:
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
            for f in functions
        ]
        return {"system": SYSTEM, "messages": turns, "tools": tools, "max_tokens": 4000}, turns
    if path == RESPONSES:
        tools = [{"type": "function", **f} for f in functions]
        return {"instructions": SYSTEM, "input": turns, "tools": tools}, turns
    turns.insert(0, {"role": "system", "content": SYSTEM})
    return {"messages": turns, "tools": TOOLS}, turns


def add_chat(turns: list[Any], reply: Json) -> None:
    message = reply["choices"][0]["message"]
    turns.append(message)
    for each in message.get("tool_calls") or []:
        text, failed = result_of(json.loads(each["function"]["arguments"]))
        content = f"Error: {text}" if failed else text
        turns.append({"role": "tool", "tool_call_id": each["id"], "content": content})


def add_messages(turns: list[Any], reply: Json) -> None:
    turns.append({"role": "assistant", "content": reply["content"]})
    results = []
    for block in reply["content"]:
        if block["type"] == "tool_use":
            text, failed = result_of(block["input"])
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": text}
            results.append(result | {"is_error": failed})
    if results:
        turns.append({"role": "user", "content": results})


def add_responses(turns: list[Any], reply: Json) -> None:
    turns += reply["output"]
    for item in reply["output"]:
        if item["type"] == "function_call":
            text, failed = result_of(json.loads(item["arguments"]))
            output = f"Error: {text}" if failed else text
            given = {"type": "function_call_output", "call_id": item["call_id"], "output": output}
            turns.append(given)


ADD = {CHAT: add_chat, MESSAGES: add_messages, RESPONSES: add_responses}


async def played(path: str, model: Model) -> list[tuple[list[int], list[int]]]:
    """Send the ten turns; return the ids of each prompt, and those of its answer."""
    body, turns = first_body(path)
    found = []
    with model.prompts() as prompts:
        for answer in ANSWERS:
            prompts.backend.says = answer
            reply = await prompts.client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            assert said_in(path, reply.text) == said_by(answer)
            ids = list(prompts.backend.seen[-1].prompt_ids)
            found.append((ids, model.tokenizer.encode(answer, add_special_tokens=False)))
            ADD[path](turns, reply.json())
            if not said_by(answer).calls:
                turns.append({"role": "user", "content": GO_ON})
        assert len(prompts.backend.seen) == 10
    return found


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_each_prompt_begins_with_the_turn_before(path: str, model: Model) -> None:
    cached: list[int] = []  # the tokens whose state the turn before left
    for ids, answer in await played(path, model):
        assert ids[: len(cached)] == cached
        assert len(ids) > len(cached)
        cached = ids + answer


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_each_turn_hits_what_the_turn_before_left_up_to_the_grid(
    path: str, model: Model
) -> None:
    """The engine's model is another: its tokens are those of the API's, folded into a few."""
    turns = [
        tuple(tuple(3 + token % (VOCAB - 3) for token in part) for part in turn)
        for turn in await played(path, model)
    ]
    longest = max(len(ids) + len(answer) for ids, answer in turns)
    made = HashModel(hash_config(max_model_len=longest + 64, chunk=16))
    engine = make_engine(made, pages=longest // PAGE + 20, chunk=64)
    grid = engine.plan.grids.checkpoint
    reached = 0  # tokens whose state the turn before left
    for ids, answer in turns:
        before = engine.counters.state_hit_tokens
        engine.generate([ids], greedy(1))
        assert engine.counters.state_hit_tokens - before == reached // grid * grid
        engine.generate([ids + answer], greedy(1))  # as if the engine had written that answer
        reached = len(ids) + len(answer)
    assert reached > 20 * grid
    assert_clean(engine)


async def test_every_api_makes_the_same_prompts(model: Model) -> None:
    made = []
    for path in (CHAT, MESSAGES, RESPONSES):
        body, turns = first_body(path)
        with model.prompts() as prompts:
            for answer in ANSWERS:
                prompts.backend.says = answer
                ADD[path](turns, (await prompts.client.post(path, json=body)).json())
                if not said_by(answer).calls:
                    turns.append({"role": "user", "content": GO_ON})
            made.append([request.prompt_ids for request in prompts.backend.seen])
    assert made[0] == made[1] == made[2]
