"""A count of the tokens of an answer's reasoning."""

from collections.abc import Sequence

from baton.text.detokenizer import make_detokenizer
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.tokenizer import Tokenizer


class ReasoningMeter:
    """The tokens of one answer up to the end of its reasoning, the marks among them.

    Reasoning begins and ends where `ReplyParser` finds it in the answer's text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: ReasoningFormat,
        thinking: ReasoningState,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        """thinking: the state of reasoning where the answer begins
        skip_special_tokens: False: the text of the answer has special tokens that are no marks
        """
        self.tokens = 0
        self.open = thinking is ReasoningState.OPEN
        self._over = thinking is ReasoningState.CLOSED
        self._form = form
        marks = tokenizer.special_marks((form.begin, form.end))
        self._detokenizer = make_detokenizer(
            tokenizer, skip_special_tokens, frozenset(marks.values())
        )
        self._before = 0  # tokens that may be the mark of the beginning
        self._text = ""  # no more than may hold a part of the next mark

    @property
    def undecided(self) -> bool:
        """True if the tokens so far may be the first mark of reasoning, or content."""
        return not (self.open or self._over)

    def count(self, ids: Sequence[int]) -> int:
        """Take tokens. Return how many belong to the reasoning, those that were undecided among
        them."""
        before = self.tokens
        for token in ids:
            if self._over:
                break
            self.push(token)
        return self.tokens - before

    def push(self, token: int) -> None:
        """Take the next token."""
        if self._over:
            return
        self._text += self._detokenizer.push([token])
        if self.open:
            self.tokens += 1
        else:
            self._before += 1
            begin, bare = self._form.begin, self._text.lstrip()
            if len(bare) < len(begin) and begin.startswith(bare):
                return
            if not bare.startswith(begin):  # the answer has no reasoning
                self._over, self._text = True, ""
                return
            self.open, self.tokens = True, self._before
            self._text = bare[len(begin) :]
        end = self._form.end
        if end in self._text:
            self.open, self._over, self._text = False, True, ""
        else:
            self._text = self._text[-len(end) :]
