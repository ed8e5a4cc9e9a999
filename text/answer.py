"""One answer's text: what both ends of the wire make of the same token ids."""

from collections.abc import Sequence

from baton.text.detokenizer import make_detokenizer
from baton.text.stops import StopMatch, StopMatcher
from baton.text.tokenizer import Tokenizer


class AnswerText:
    """Ids in, text that may be shown out.

    The engine pushes each token, and when `match` is set it ends the request with `cut_chars`. The
    API pushes the ids as they come, shows what `push` returns, and ends with `finish(cut_chars)` as
    the engine reported it. Stop strings do not count before `min_tokens` tokens are there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopMatcher(stops, include_stop)
        self._unarmed = max(min_tokens - 1, 0)  # tokens that cannot end the answer

    @property
    def match(self) -> StopMatch | None:
        """The stop string that ended this answer, once it is complete."""
        return self._matcher.match

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; the text that is certain, without what may become a stop string."""
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
        """No more ids will come: the characters to cut from the end of the text.

        The text is `tokenizer.decode` of all ids; it is cut only where a stop string was found.
        `match` may be set only now, when the last token's text was uncertain before.
        """
        self._matcher.push(self._detokenizer.finish(), armed=not self._unarmed)
        return self._matcher.seen - self._matcher.keep

    def finish(self, cut_chars: int = 0) -> str:
        """The last text: all that was held back, less the last `cut_chars` characters."""
        out = self._matcher.push(self._detokenizer.finish())
        return out + self._matcher.flush(self._matcher.seen - cut_chars)
