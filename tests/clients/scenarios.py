"""Scripted answers of the model: a client names a scenario in its message, and the model gives
that scenario's answers one after another.
"""

import json
import re
from collections.abc import Mapping, Sequence

Scripts = Mapping[str, Sequence[str]]
UNSCRIPTED = "Fine."
"""The answer to everything else, such as an agent's request for a title."""


def call(name: str, **arguments: object) -> str:
    """Return a tool call in the form in which `strict_text.jinja` writes it."""
    written = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


def thought(text: str) -> str:
    return f"<think>{text}</think>"


IN_PARIS = call("weather", city="Paris")
SDK_SCRIPTS: Scripts = {
    "plain": ["Fine, thank you."],
    "call": [IN_PARIS, "It is 18 C in Paris."],
    "parallel": [
        "I look." + IN_PARIS + call("weather", city="Atlantis"),
        "Paris has 18 C; nobody knows Atlantis.",
    ],
    "think": [thought("Hm, so.") + "Thought over."],
    "think_call": [thought("I need it.") + IN_PARIS, "It is 18 C in Paris."],
    "object": ['{"city": "Paris", "degrees": 18}'],
    "json_tool": ['[{"name":"json","arguments":{"city":"Paris","degrees":18}}]'],
    "forced": ['[{"name":"Weather","arguments":{"city":"Paris","degrees":18}}]'],
}


def answer_to(prompt: str, scripts: Scripts) -> str:
    """Return the answer to a prompt of `strict_text.jinja`: the last scenario that it names says
    which, and the number of answers behind that name says how far the scenario has come.
    """
    named = list(re.finditer(r"scenario (\w+)", prompt))
    if not named or named[-1][1] not in scripts:
        return UNSCRIPTED
    script = scripts[named[-1][1]]
    if any("<tool_call>" in answer for answer in script) and "<tools>" not in prompt:
        return UNSCRIPTED
    given = prompt.count("<|assistant|>", named[-1].end()) - 1  # the last begins this answer
    return script[given] if given < len(script) else UNSCRIPTED
