"""Canonical conversations, and the forms of one that chat templates read."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from conversation_draws import TOOLS, Json, Turn


@dataclass(frozen=True)
class Talk:
    """A conversation of texts that occur once, so that a prompt shows which of them it has."""

    name: str
    turns: Sequence[Turn]
    has_tools: bool = False
    continued: bool = False  # the answer goes on with the last turn

    @property
    def tools(self) -> list[Json] | None:
        return TOOLS if self.has_tools else None

    def marks(self) -> list[str]:
        """Return all that a prompt should show."""
        found = [tool["function"]["description"] for tool in self.tools or ()]
        for turn in self.turns:
            found += [*turn.parts, turn.thoughts]
            for _, name, arguments in turn.calls:
                found += [name, *arguments]
                found += [each for each in arguments.values() if isinstance(each, str)]
        return [mark for mark in found if mark]


SYSTEM = Turn("system", ["You like short words."])
ASK, AGAIN = Turn("user", ["Which fruit is blue?"]), Turn("user", ["And which is red?"])
PLUM, CHERRY = Turn("assistant", ["A plum is."]), Turn("assistant", ["A cherry is."])
# Nine letters or digits: Mistral's templates refuse other names of calls.
READ = ("read00001", "read", {"zone": "orchard", "about": "naïve 日本"})
EDIT = ("edit00002", "edit", {"deep": {"list": [1, "two"], "no": False}, "sure": True, "n": 7})
BARE: tuple[str, str, dict[str, Any]] = ("peek00003", "peek", {})
FOUND = Turn("tool", ["Plums hang there."], of_call=READ[0])
DONE = Turn("tool", ["Mended it."], of_call=EDIT[0])
READS, EDITS = Turn("assistant", calls=[READ]), Turn("assistant", calls=[EDIT])
THINKS_READS = replace(READS, thoughts="I must look.")
THINKS_EDITS = replace(EDITS, thoughts="I must mend.")

TALKS = (
    Talk("one question", [ASK]),
    Talk("a system", [SYSTEM, ASK]),
    Talk("turns", [SYSTEM, ASK, PLUM, AGAIN, CHERRY, Turn("user", ["Thanks."])]),
    Talk("thoughts", [ASK, replace(PLUM, thoughts="Plums, I think."), AGAIN]),
    Talk("tools unused", [SYSTEM, ASK], has_tools=True),
    Talk("a call", [ASK, READS, FOUND], has_tools=True),
    Talk("a call answered", [SYSTEM, ASK, READS, FOUND, PLUM, AGAIN], has_tools=True),
    Talk(
        "text beside two calls",
        [ASK, Turn("assistant", ["I look."], calls=[READ, EDIT]), FOUND, DONE],
        has_tools=True,
    ),
    Talk(
        "thoughts beside calls",
        [SYSTEM, ASK, THINKS_READS, FOUND, THINKS_EDITS, DONE],
        has_tools=True,
    ),
    Talk(
        "a call of nothing",
        [ASK, Turn("assistant", calls=[BARE]), Turn("tool", of_call=BARE[0])],
        has_tools=True,
    ),
    Talk(
        "parts", [Turn("system", ["Be kind.", "Be brief."]), Turn("user", ["Look.", "And there."])]
    ),
    Talk(
        "parts of a result",
        [ASK, READS, replace(FOUND, parts=["Plums hang.", "Pears lie."])],
        has_tools=True,
    ),
    Talk("a late system", [SYSTEM, ASK, PLUM, Turn("system", ["Now be brief."]), AGAIN]),
    Talk("two questions at once", [ASK, AGAIN]),
    Talk("a continued answer", [SYSTEM, ASK, Turn("assistant", ["A plum is"])], continued=True),
)


@dataclass(frozen=True)
class Form:
    """The form in which a template gets a conversation. The defaults are transformers' own."""

    system: str = "kept"  # `first`: one behind others joins the user's message; `none`: each does
    joined: bool = False  # messages of the user that follow each other are one
    lists: frozenset[str] | None = frozenset({"system", "user", "tool"})
    """The roles whose content is a list, where it has several parts. None: all contents are lists,
    those of one part too."""
    thoughts: str = "reasoning_content"
    empty: str | None = ""  # the content beside calls; `absent`: there is none
    objects: bool = True  # arguments are objects, else JSON text

    def messages(self, turns: Sequence[Turn]) -> list[Json]:
        return [self._message(turn) for turn in self._placed(turns)]

    def _placed(self, turns: Sequence[Turn]) -> list[Turn]:
        placed: list[Turn] = []
        waiting: list[str] = []  # of system messages, for the user's behind them
        for number, turn in enumerate(turns):
            leaves = self.system == "none" or (self.system == "first" and number > 0)
            if turn.role == "system" and leaves:
                waiting = _joined(waiting, turn.parts)
            elif self.joined and placed and turn.role == placed[-1].role == "user":
                placed[-1] = replace(placed[-1], parts=_joined(placed[-1].parts, turn.parts))
            else:
                placed.append(replace(turn, parts=_joined(waiting, turn.parts)))
                waiting = []
        return placed

    def _message(self, turn: Turn) -> Json:
        listed = self.lists is None or (len(turn.parts) > 1 and turn.role in self.lists)
        parts = [{"type": "text", "text": part} for part in turn.parts]
        message: Json = {"role": turn.role, "content": parts if listed else "\n".join(turn.parts)}
        if turn.calls:
            if not turn.parts:
                message["content"] = self.empty
            message["tool_calls"] = [self._call(*call) for call in turn.calls]
        if turn.thoughts:
            message[self.thoughts] = turn.thoughts
        if turn.role == "tool":
            message["tool_call_id"] = turn.of_call
        return {name: each for name, each in message.items() if each != "absent"}

    def _call(self, of_call: str, name: str, arguments: Json) -> Json:
        given = arguments if self.objects else json.dumps(arguments, ensure_ascii=False)
        function = {"name": name, "arguments": given}
        return {"id": of_call, "type": "function", "function": function}


def _joined(before: list[str], behind: list[str]) -> list[str]:
    if not before or not behind:
        return before or behind
    return [*before[:-1], f"{before[-1]}\n{behind[0]}", *behind[1:]]


def forms_of(talk: Talk) -> Iterator[Form]:
    """Yield the forms in which a conversation differs, the plainest first."""
    roles = {turn.role for turn in talk.turns}
    many = sorted({turn.role for turn in talk.turns if len(turn.parts) > 1})
    calls = any(turn.calls for turn in talk.turns)
    lists = [
        frozenset(some) for size in range(len(many), -1, -1) for some in combinations(many, size)
    ]
    for values in product(
        ("kept", "first", "none") if "system" in roles else ("kept",),
        (False, True),
        (*(lists if many else [Form.lists]), None),
        ("reasoning_content", "reasoning", "thinking")
        if any(turn.thoughts for turn in talk.turns)
        else ("reasoning_content",),
        ("", None, "absent") if calls else ("",),
        (True, False) if calls else (True,),
    ):
        yield Form(*values)
