"""The part of an earlier turn's prompt and answer with which a later prompt begins: a prefix cache
can use no more.
"""

import re
from collections.abc import Sequence
from enum import Enum


class Kept(Enum):
    """The part of an answer that a client sent back unchanged."""

    ALL = "all"
    NO_THOUGHTS = "all but thoughts"
    CHANGED = "changed"


def continued(prompts: Sequence[str], answers: Sequence[str]) -> tuple[int, Kept] | None:
    """Return the turn that the last prompt continues, and what it kept of that turn's answer.

    None if it begins a conversation.
    """
    prompt = prompts[-1]
    before = [
        n for n, each in enumerate(prompts[:-1]) if prompt != each != "" and prompt.startswith(each)
    ]
    if not before:
        return None
    turn = max(before, key=lambda n: (len(prompts[n]), n))
    rest = prompt[len(prompts[turn]) :]
    if rest.startswith(f"{answers[turn]}<|end|>"):
        return turn, Kept.ALL
    without = re.sub(r"^<think>.*?</think>", "", answers[turn], flags=re.DOTALL)
    return turn, Kept.NO_THOUGHTS if rest.startswith(f"{without}<|end|>") else Kept.CHANGED
