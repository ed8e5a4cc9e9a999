"""The reasoning of an answer: its marks, and where it is open when the answer begins."""

from dataclasses import dataclass
from enum import Enum, auto


class ReasoningState(Enum):
    """The state of reasoning where an answer begins, which the chat template decides.

    Only what the template writes behind the last message counts. A mark in a message is a text
    like any other, whoever wrote it.
    """

    FREE = auto()  # the template wrote no mark: the answer may begin with reasoning
    OPEN = auto()  # the template began the reasoning
    CLOSED = auto()  # the template ended it, or the answer goes on behind other text


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks round a model's reasoning."""

    begin: str
    end: str

    def named_in(self, prompt: str) -> bool:
        """Return whether a mark stands in the prompt; without one, no search is needed."""
        return self.begin in prompt or self.end in prompt

    def thinking_after(self, opening: str) -> ReasoningState:
        """Return the state behind `opening`, the text that begins the answer's turn."""
        begun, ended = opening.rfind(self.begin), opening.rfind(self.end)
        if begun == ended:  # neither is there
            return ReasoningState.FREE
        return ReasoningState.OPEN if begun > ended else ReasoningState.CLOSED

    def thinking_in(self, answer: str) -> ReasoningState:
        """Return the state behind the beginning of an answer, which goes on."""
        bare = answer.lstrip()
        if not bare.startswith(self.begin):
            return ReasoningState.CLOSED if bare else ReasoningState.FREE
        return ReasoningState.CLOSED if self.end in bare else ReasoningState.OPEN


_THINK = ReasoningFormat("<think>", "</think>")
_GRANITE = ReasoningFormat("Here is my thought process:", "Here is my response:")


def find_reasoning_format(template: str) -> ReasoningFormat | None:
    """Return the format whose marks the chat template has, or None."""
    return next((form for form in (_THINK, _GRANITE) if form.end in template), None)
