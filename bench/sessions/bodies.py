"""The requests of `baton bench router`: one token each, in the sizes that clients send."""

import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from baton.bench.sessions.chat_model import sources

TEXT = 64  # characters of a prompt of `/generate`
CHAT_BYTES = 600  # of a body of a short chat
TURN_BYTES = 60_000  # about, of a conversation's body; a server parses up to 64 KiB by itself
TOOLS = 20
MORE_BYTES = 800  # what a turn adds: an answer, and what the client says to it
TURNS = 8  # of a conversation
_WORDS = "read the file and fix its tests then run them again with more output please".split()


def generate_bodies(count: int, rng: random.Random) -> list[bytes]:
    """Return requests of `/generate`, as both routers take them."""
    once = {"max_new_tokens": 1}
    return [
        json.dumps({"text": short_text(rng), "sampling_params": once}).encode()
        for _ in range(count)
    ]


def short_text(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase + " ", k=TEXT))


def chat_bodies(count: int, rng: random.Random) -> list[bytes]:
    """Return chats of CHAT_BYTES each, a system message and a question."""
    return [_chat(["Answer briefly.", _words(rng, CHAT_BYTES)], CHAT_BYTES) for _ in range(count)]


@dataclass(frozen=True)
class Conversation:
    """An agent's conversation: tools, files that it has read, and turns that grow at the end."""

    tools: list[dict[str, Any]]
    messages: tuple[str, ...]  # user and assistant in turns, behind the system message

    @classmethod
    def draw(cls, rng: random.Random) -> "Conversation":
        """Draw one whose last body has about TURN_BYTES: lines of code are escaped."""
        tools = [_tool(number, rng) for number in range(TOOLS)]
        text = _source(rng)
        room = TURN_BYTES - TURNS * MORE_BYTES - len(json.dumps(tools))
        files = [text[at : at + 4000] for at in range(0, room * 9 // 10, 4000)]
        files += [_words(rng, 60)] * (1 - len(files) % 2)  # the last is the user's
        more = [_words(rng, MORE_BYTES // 2 - 50) for _ in range(2 * TURNS)]
        return cls(tools, ("You are a coding agent.", *files, *more))

    def bodies(self) -> list[bytes]:
        """Return the bodies of TURNS turns."""
        first = len(self.messages) - 2 * TURNS
        return [_chat(self.messages[: first + 2 * turn], tools=self.tools) for turn in range(TURNS)]


def turn_bodies(conversations: int, rng: random.Random) -> tuple[list[bytes], list[bytes]]:
    """Return the first turns of so many conversations, and their further turns in order."""
    drawn = [Conversation.draw(rng).bodies() for _ in range(conversations)]
    later = [bodies[turn] for turn in range(1, TURNS) for bodies in drawn]
    return [bodies[0] for bodies in drawn], later


def _chat(
    texts: "tuple[str, ...] | list[str]", size: int = 0, tools: list[dict[str, Any]] | None = None
) -> bytes:
    """Return a body: a system message, then user and assistant in turns.

    size: cut the last text so that the body has so many bytes; 0: as it is
    """
    body: dict[str, Any] = {
        "model": "default",
        "messages": [
            {"role": _role(at), "content": text} for at, text in enumerate(texts)
        ],
        "max_tokens": 1,
    }  # fmt: skip
    if tools is not None:
        body["tools"] = tools
    if size:
        last = body["messages"][-1]
        last["content"] = last["content"][: size - len(json.dumps(body))]
    return json.dumps(body).encode()


def _role(at: int) -> str:
    return "system" if not at else "user" if at % 2 else "assistant"


def _words(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices(_WORDS, k=size // 4))[:size]


def _source(rng: random.Random) -> str:
    """Return a text as long as a conversation's files, from anywhere in the sources."""
    texts: Iterator[str] = sources()
    whole = "".join(text for text in texts if text.isascii())
    at = rng.randrange(len(whole) - TURN_BYTES)
    return whole[at : at + TURN_BYTES]


def _tool(number: int, rng: random.Random) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": _words(rng, 80)} for name in ("path", "text", "how")
    }
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": _words(rng, 200),
            "parameters": {"type": "object", "properties": properties, "required": ["path"]},
        },
    }
