"""The reading of replies of each API, and of the scripted answers that they carry."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@dataclass
class Said:
    """An answer, in no API's form."""

    thoughts: str = ""
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)  # name, arguments


def said_by(answer: str) -> Said:
    """Return what an answer of the scripts says: thoughts, a text, then calls."""
    found = re.fullmatch(r"(?:<think>(.*?)</think>)?(.*)", answer, re.DOTALL)
    assert found is not None, "any text is of this form"
    thoughts, answer = found.groups()
    text, *calls = re.split(r"<tool_call>\n(.*?)\n</tool_call>", answer, flags=re.DOTALL)
    read = [json.loads(each) for each in calls[::2]]
    return Said(thoughts or "", text.strip(), [(c["name"], c["arguments"]) for c in read])


def said_in(path: str, reply: str) -> Said:
    """Return what a reply says, streamed or not."""
    streamed = reply.startswith(("event:", "data:", ":"))
    if path == CHAT:
        return _chat_stream(reply) if streamed else _chat(json.loads(reply)["choices"][0])
    if path == RESPONSES:
        whole = list(_events(reply))[-1]["response"] if streamed else json.loads(reply)
        return _responses(whole)
    return _messages(_blocks(reply) if streamed else json.loads(reply)["content"])


def _events(reply: str) -> Iterator[Any]:
    for line in reply.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _chat(choice: Any) -> Said:
    message = choice["message"]
    return Said(
        message.get("reasoning_content") or "",
        message["content"] or "",
        [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or []
        ],
    )


def _chat_stream(reply: str) -> Said:
    said, calls = Said(), list[list[str]]()
    for event in _events(reply):
        for choice in event["choices"]:
            delta = choice["delta"]
            said.thoughts += delta.get("reasoning_content") or ""
            said.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"].get("arguments") or ""
    said.calls = [(name, json.loads(arguments)) for name, arguments in calls]
    return said


def _responses(whole: Any) -> Said:
    said = Said()
    for item in whole["output"]:
        if item["type"] == "reasoning":
            said.thoughts += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            said.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            said.calls.append((item["name"], json.loads(item["arguments"])))
        else:
            said.calls.append((item["name"], {"input": item["input"]}))
    return said


def _messages(blocks: list[Any]) -> Said:
    said = Said()
    for block in blocks:
        if block["type"] == "thinking":
            said.thoughts += block["thinking"]
        elif block["type"] == "text":
            said.text += block["text"]
        else:
            said.calls.append((block["name"], block["input"]))
    return said


def _blocks(reply: str) -> list[Any]:
    blocks: list[Any] = []
    inputs: dict[int, str] = {}
    for event in _events(reply):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, index = event["delta"], event["index"]
            if delta["type"] == "input_json_delta":
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
            elif delta["type"] in ("text_delta", "thinking_delta"):
                kind = delta["type"].removesuffix("_delta")
                blocks[index][kind] += delta[kind]
    for index, written in inputs.items():
        blocks[index]["input"] = json.loads(written or "{}")
    return blocks
