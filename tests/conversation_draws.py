"""Random conversations, and the forms in which clients of each API send one."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

WORDS = ["hello", "naïve café", "a </b>\n", '"quoted" {x}', "日本語 😀", "None", "<|end", "  two  "]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"z": {}, "a": {"type": "string"}}},
        },
    }
    for name in ("read", "edit")
]
Json = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message of a conversation, in no API's form."""

    role: str
    parts: list[str] = field(default_factory=list)
    thoughts: str = ""
    calls: list[tuple[str, str, Json]] = field(default_factory=list)  # id, name, arguments
    of_call: str = ""  # the call that a result answers


def draw_conversation(rng: random.Random, *, late_system: bool) -> list[Turn]:
    """Return turns that end with the user's or with results."""
    turns = [Turn("system", _parts(rng, 1))] if rng.random() < 0.5 else []
    turns.append(Turn("user", _parts(rng, 1)))
    for number in range(rng.randrange(4)):
        calls = [
            (f"call{number}{i:04}", rng.choice(["read", "edit"]), _arguments(rng))
            for i in range(rng.choice([0, 1, 1, 2]))
        ]
        thoughts = rng.choice(["", "", "Hm, so."])
        turns.append(Turn("assistant", _parts(rng, 0 if calls else 1), thoughts, calls))
        turns += [Turn("tool", _parts(rng, 0), of_call=call[0]) for call in calls]
        if late_system and rng.random() < 0.2:
            turns.append(Turn("system", _parts(rng, 1)))
        if not calls or rng.random() < 0.5:
            turns.append(Turn("user", _parts(rng, 1)))
    return turns


def as_chat(turns: list[Turn], rng: random.Random) -> Json:
    """Return a body of chat completions."""
    return {"messages": [_chat_message(turn, rng) for turn in turns], "tools": TOOLS}


def as_messages(turns: list[Turn], rng: random.Random) -> Json:
    """Return a body of Anthropic's Messages."""
    body: Json = {"messages": [], "max_tokens": 1}
    body["tools"] = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in TOOLS)
    ]
    messages: list[Json] = body["messages"]
    for number, turn in enumerate(turns):
        texts = [_block(part, rng) for part in turn.parts]
        after_result = number > 0 and turns[number - 1].role == "tool"
        if turn.role == "system" and number == 0:
            body["system"] = _text_or(texts, rng)
        elif turn.role == "tool":
            content = rng.choice([_text_or(texts, rng), texts])
            result: Json = {"type": "tool_result", "tool_use_id": turn.of_call}
            if texts or rng.random() < 0.5:
                result["content"] = content
            if after_result:
                messages[-1]["content"].append(result)
            else:
                messages.append({"role": "user", "content": [result]})
        elif turn.role == "user" and after_result and rng.random() < 0.5:
            messages[-1]["content"] += texts
        elif turn.role == "assistant":
            messages.append({"role": "assistant", "content": _anthropic_turn(turn, texts, rng)})
        else:
            messages.append({"role": turn.role, "content": _text_or(texts, rng)})
    return body


def as_responses(turns: list[Turn], rng: random.Random) -> Json:
    """Return a body of OpenAI's Responses."""
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    body: Json = {"input": [], "tools": tools, "max_output_tokens": 1}
    items: list[Json] = body["input"]
    for number, turn in enumerate(turns):
        out = turn.role == "assistant"
        parts = [{"type": "output_text" if out else "input_text", "text": t} for t in turn.parts]
        content: Any = parts
        if len(parts) == 1 and rng.random() < 0.5:
            content = turn.parts[0]
        if turn.role == "system" and number == 0 and len(parts) == 1 and rng.random() < 0.5:
            body["instructions"] = turn.parts[0]
        elif turn.role == "tool":
            output = rng.choice(["", []]) if not parts else content
            item = {"type": "function_call_output", "call_id": turn.of_call, "output": output}
            items.append(item)
        elif out:
            if turn.thoughts:
                text = {"type": "reasoning_text", "text": turn.thoughts}
                items.append({"type": "reasoning", "summary": [], "content": [text]})
            if parts or (turn.calls and rng.random() < 0.5):
                items.append({"type": "message", "role": "assistant", "content": content})
            for of_call, name, arguments in turn.calls:
                call = {"type": "function_call", "call_id": of_call, "name": name}
                items.append(call | {"arguments": _argument_text(arguments, rng)})
        else:
            items.append({"role": _role(turn.role, rng), "content": content})
    return body


def _chat_message(turn: Turn, rng: random.Random) -> Json:
    message: Json = {"role": _role(turn.role, rng)}
    parts: list[Json] = [{"type": "text", "text": text} for text in turn.parts]
    if parts:
        message["content"] = _text_or(parts, rng)
    elif rng.random() < 0.8:
        message["content"] = rng.choice([None, "", []])
    if turn.role == "assistant":
        if parts and not turn.calls and rng.random() < 0.1:
            message["content"] = [{"type": "refusal", "refusal": text} for text in turn.parts]
        calls: list[Json] = []
        for of_call, name, arguments in turn.calls:
            function: Json = {"name": name}
            if arguments or rng.random() < 0.8:
                function["arguments"] = rng.choice([arguments, _argument_text(arguments, rng)])
                if not arguments:
                    function["arguments"] = rng.choice([{}, None, "", " ", "null", "{}", []])
            calls.append({"id": of_call, "type": "function", "function": function})
        if calls or rng.random() < 0.3:
            message["tool_calls"] = calls or rng.choice([None, []])
        if turn.thoughts:
            message[rng.choice(["reasoning_content", "reasoning", "thinking"])] = turn.thoughts
        if rng.random() < 0.3:  # the dump of an SDK's object
            message = {"refusal": None, "audio": None, "function_call": None} | message
    if turn.role == "tool":
        message["tool_call_id"] = turn.of_call
    return message


def _anthropic_turn(turn: Turn, texts: list[Json], rng: random.Random) -> list[Json]:
    blocks: list[Json] = []
    if turn.thoughts:
        blocks.append({"type": "thinking", "thinking": turn.thoughts, "signature": "x"})
    if rng.random() < 0.2:
        blocks.append({"type": "redacted_thinking", "data": "x"})
    blocks += texts or ([{"type": "text", "text": ""}] if rng.random() < 0.3 else [])
    for of_call, name, arguments in turn.calls:
        blocks.append({"type": "tool_use", "id": of_call, "name": name, "input": arguments})
    return blocks


def _role(role: str, rng: random.Random) -> str:
    return rng.choice(["system", "developer"]) if role == "system" else role


def _parts(rng: random.Random, least: int) -> list[str]:
    return [rng.choice(WORDS) for _ in range(max(least, rng.choice([0, 1, 1, 1, 2])))]


def _arguments(rng: random.Random) -> Json:
    values = [7, "x", None, True, [1, "b"], {"k": {}}, "日本 \n", 1.5]
    return {name: rng.choice(values) for name in rng.sample(["z", "a", "m"], rng.randrange(3))}


def _argument_text(arguments: Json, rng: random.Random) -> str:
    if not arguments:
        return rng.choice(["", " ", "{}", "null"])
    return json.dumps(arguments, ensure_ascii=False)


def _block(text: str, rng: random.Random) -> Json:
    cached = {"cache_control": {"type": "ephemeral"}} if rng.random() < 0.2 else {}
    return {"type": "text", "text": text, **cached}


def _text_or(blocks: list[Json], rng: random.Random) -> Any:
    return blocks[0]["text"] if len(blocks) == 1 and rng.random() < 0.5 else blocks
