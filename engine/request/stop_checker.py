"""The end of a request's output, and how much of its text to cut."""

from collections.abc import Sequence

from baton.core.errors import RequestError
from baton.core.finish import End, FinishReason
from baton.core.sampling_params import SamplingParams
from baton.text.answer import AnswerText
from baton.text.errors import StopRegexError
from baton.text.tokenizer import Tokenizer


class StopChecker:
    """Watches one request's output. It is rebuilt from the output ids, so it never travels.

    A stop token counts from output index `min_tokens` on; sampling bans it before.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        max_output: int,
        stop_ids: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        """max_output: output tokens that the context has room for. stop_ids: tokens that end the
        output."""
        searched = bool(sampling.stop or sampling.stop_regex)
        if searched and tokenizer is None:
            raise RequestError(
                "stop strings need a tokenizer, and this engine has none: use stop_token_ids, or "
                "add tokenizer.json to the model folder",
                "stop" if sampling.stop else "stop_regex",
            )
        self.stop_ids = stop_ids
        self._sampling = sampling
        self.limit = min(sampling.max_tokens, max_output)
        """Output tokens, at most."""
        self._tokenizer = tokenizer
        self._answer: AnswerText | None = None
        if searched and tokenizer is not None:
            self._answer = _searched_text(tokenizer, sampling)
        self.watches = self._answer is not None
        """It must see the text of every token."""

    def replay(self, output: Sequence[int]) -> End | None:
        """Take the output ids that were given with the request."""
        for count in range(1, len(output) + 1):
            stop = self._next(output, count)
            if stop is not None:
                return stop
        return None

    def push(self, output: Sequence[int]) -> End | None:
        """Take a new token. `output`: every token so far; the last is new."""
        return self._next(output, len(output))

    def _next(self, output: Sequence[int], count: int) -> End | None:
        """Take token `count` of `output`, which is new; those before it were taken."""
        token = output[count - 1]
        if token in self.stop_ids and count > self._sampling.min_tokens:
            return self._stopped_by_token(output[:count])
        if self._answer is not None:
            self._answer.push((token,))
            if self._answer.match is not None:
                return self._ended(FinishReason.STOP)
        if count >= self.limit:
            return self._ended(FinishReason.LENGTH)
        return None

    def end(self) -> End:
        """End the output for a reason that is not in its tokens."""
        return self._ended(FinishReason.STOP)

    def _ended(self, reason: FinishReason) -> End:
        """End the text. A stop string may be found only now."""
        if self._answer is None:
            return End(reason)
        cut = self._answer.end()
        match = self._answer.match
        if match is None:
            return End(reason)
        return End(FinishReason.STOP, stop_string=match.stop, cut_chars=cut)

    def _stopped_by_token(self, output: Sequence[int]) -> End:
        before = self._ended(FinishReason.STOP)
        hidden = 0 if self._sampling.include_stop else self._last_chars(output)
        return End(
            FinishReason.STOP,
            stop_token_id=output[-1],
            stop_string=before.stop_string,
            cut_chars=before.cut_chars + hidden,
        )

    def _last_chars(self, output: Sequence[int]) -> int:
        """Count the characters that the last token adds to the text: 0 where it completes a
        character that others began: two marks of broken bytes may become one letter.
        """
        tokenizer = self._tokenizer
        if tokenizer is None or not tokenizer.with_text(output[-1:]):
            return 0
        return max(0, len(tokenizer.decode(output)) - len(tokenizer.decode(output[:-1])))


def _searched_text(tokenizer: Tokenizer, sampling: SamplingParams) -> AnswerText:
    """Return the text of an answer that stop strings are searched in. Raises RequestError."""
    try:
        return AnswerText(
            tokenizer,
            sampling.stop,
            stop_regex=sampling.stop_regex,
            include_stop=sampling.include_stop,
            min_tokens=sampling.min_tokens,
        )
    except StopRegexError as error:
        raise RequestError(str(error), "stop_regex") from error
