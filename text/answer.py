"""The text of one answer, as the engine and the API both compute it from the same token ids."""

from collections.abc import Collection, Sequence

from baton.text.detokenizer import make_detokenizer
from baton.text.stops import StopMatch, StopMatcher
from baton.text.tokenizer import Tokenizer


class AnswerText:
    """The text of one answer, computed as its token ids come.

    The engine pushes each token, and when `match` is set it ends the request with `cut_chars`. The
    API pushes the ids as they come, shows what `push` returns, and ends with `finish(cut_chars)` as
    the engine reported it. Stop strings do not count before `min_tokens` tokens are there.

    The text of a token that ended the answer is not shown. The newest token may be such a token: if
    it is in `end_ids`, its text is held back until the next token comes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        stop_regex: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        end_ids: Collection[int] = (),
        mark_ids: frozenset[int] = frozenset(),
    ) -> None:
        """end_ids: ids that may end the answer. mark_ids: special tokens that are shown, for a
        parser that takes them out. Only the API needs either: the engine does not push a token that
        ends the answer, and looks for stop strings in the text without marks.
        """
        self._tokenizer = tokenizer
        self._end_ids = frozenset() if include_stop else frozenset(end_ids)
        self._newest: list[int] = []  # at most one of `end_ids`, not pushed yet
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens, mark_ids)
        self._matcher = StopMatcher(stops, include_stop, stop_regex)
        self._unarmed = max(min_tokens - 1, 0)  # tokens that cannot end the answer

    @property
    def match(self) -> StopMatch | None:
        """The stop string that ended this answer, once it is complete."""
        return self._matcher.match

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids. Return the text that is certain and cannot become a stop string."""
        if self._newest or (ids and ids[-1] in self._end_ids):
            ids = [*self._newest, *ids]
            certain = len(ids) - (ids[-1] in self._end_ids)
            ids, self._newest = ids[:certain], ids[certain:]
        if not self._unarmed:
            return self._matcher.push(self._detokenizer.push(ids))
        early = ids[: self._unarmed]
        self._unarmed -= len(early)
        out = ""
        if early:
            out = self._matcher.push(self._detokenizer.push(early), armed=False)
        late = ids[len(early) :]
        return out + self._matcher.push(self._detokenizer.push(late)) if late else out

    def end(self) -> int:
        """Take the end of the ids. Return the number of characters to cut from the end of the text.

        The text is `tokenizer.decode` of all ids; it is cut only where a stop string was found.
        `match` may be set only now, when the last token's text was uncertain before.
        """
        self._matcher.push(self._detokenizer.finish(), armed=not self._unarmed)
        return self._matcher.seen - self._matcher.keep

    def finish(self, cut_chars: int = 0) -> str:
        """Return the text that was held back, without its last `cut_chars` characters."""
        # Where special tokens are shown, one that ended the answer is not, and is not in the cut.
        text = self._detokenizer.push(self._tokenizer.with_text(self._newest))
        self._matcher.hold(text + self._detokenizer.finish())
        return self._matcher.flush(self._matcher.seen - cut_chars)
