"""The answer of one attempt, between the session that receives it and the handler that reads it."""

from collections.abc import Callable, Coroutine
from typing import Any

from baton.api.answer_queue import AnswerQueue, StreamPace
from baton.api.backend import TokenEvent
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason, Usage
from baton.core.logprobs import PromptLogprobs
from baton.proto.common_pb2 import PromptSource
from baton.proto.worker_pb2 import RequestTokens
from baton.rpc.convert import finished_from_proto, logprob_from_proto, prompt_logprobs_from_proto


class AnswerStream:
    """The tokens of one attempt, written by one session and read by one handler on one event
    loop.

    The reader receives each output index once and in order, and `Finished` last: tokens that
    earlier attempts or messages brought are dropped.
    """

    def __init__(
        self,
        request_id: str,
        attempt: int,
        clock: Callable[[], float],
        *,
        given: int = 0,
        scored_to: int = 0,
        pace: StreamPace | None = None,
    ) -> None:
        """given, scored_to: output tokens and prompt scores that earlier attempts brought.
        pace: that of all streams of the event loop; None: one of its own.
        """
        self.request_id = request_id
        self.attempt = attempt
        self.handle = 0
        """The attempt's number on its session; 0 before it is sent."""
        self.next_index = given
        """Output tokens so far."""
        self.first_in: float | None = None
        """The time at which the first token arrived, on `clock`; None before that."""
        self.held_us = 0
        """The time for which the rank held the first token, in microseconds."""
        self.rank_done = False
        """True once the rank has finished the request or was lost."""
        self.scored_to = scored_to
        """The first prompt position whose score is still missing."""
        self.returned = False
        """True if the rank has given the attempt back: another goes on from the tokens so far."""
        self.state_tokens = 0
        """Tokens of prompt and answer whose state the rank has cached. Set at the end."""
        self.source: PromptSource | None = None
        """The origin of the prompt's KV and state. Set at the end, where the rank names it."""
        self._over = False
        self._clock = clock
        self._events = AnswerQueue(pace or StreamPace())

    def next(self) -> Coroutine[Any, Any, TokenEvent | Finished]:
        """Return the next event. It waits until the session feeds or ends the stream."""
        return self._events.next()

    def feed(self, tokens: RequestTokens) -> None:
        """Take a message of the rank. Tokens of another attempt are ignored."""
        if self._over or tokens.attempt != self.attempt:
            return
        if tokens.first_index > self.next_index:
            self.fail(self._gap(tokens.first_index))
            return
        event = self._new_part(tokens)
        if event is not None:
            self._events.put(event)
        if tokens.HasField("finished"):
            self.rank_done = True
            self.state_tokens = tokens.finished.state_tokens
            if tokens.finished.HasField("source"):
                self.source = tokens.finished.source
            self._end(finished_from_proto(tokens.finished))

    def feed_token(self, index: int, token_id: int) -> None:
        """Take one token, of this attempt and without a log probability."""
        if self._over or index < self.next_index:
            return
        if index > self.next_index:
            self.fail(self._gap(index))
            return
        if self.first_in is None:
            self.first_in = self._clock()
        self.next_index = index + 1
        self._events.put(TokenEvent(index, (token_id,)))

    def give_back(self) -> None:
        """End the stream: the rank has let go of the attempt. Does nothing if it has ended."""
        if not self._over:
            self.returned = self.rank_done = True
            error = ApiError(ErrorCode.UNAVAILABLE, "its rank gave the request back")
            self.fail(error)

    def fail(self, error: ApiError, reason: FinishReason = FinishReason.ERROR) -> None:
        """End the stream with `error`. Does nothing if it has ended already."""
        if not self._over:
            usage = Usage(completion_tokens=self.next_index)
            self._end(Finished(End(reason), usage=usage, error=error))

    def _new_part(self, tokens: RequestTokens) -> TokenEvent | None:
        old = self.next_index - tokens.first_index
        ids = tuple(tokens.token_ids[old:] if old else tokens.token_ids)
        prompt = self._new_prompt_part(tokens) if tokens.HasField("prompt_logprobs") else None
        if not ids and prompt is None:
            return None
        if ids and self.first_in is None:
            self.first_in = self._clock()
            self.held_us = tokens.held_us
        first = self.next_index
        self.next_index += len(ids)
        scores = tokens.logprobs
        logprobs = tuple(map(logprob_from_proto, scores[old:])) if scores else ()
        return TokenEvent(first, ids, logprobs, prompt)

    def _new_prompt_part(self, tokens: RequestTokens) -> PromptLogprobs | None:
        chunk = prompt_logprobs_from_proto(tokens.prompt_logprobs)
        new = chunk.tokens[max(self.scored_to - chunk.start, 0) :]
        end = chunk.start + len(chunk.tokens)
        self.scored_to = max(self.scored_to, end)
        return PromptLogprobs(end - len(new), new) if new else None

    def _end(self, finished: Finished) -> None:
        self._over = True
        self._events.end(finished)

    def _gap(self, first_index: int) -> ApiError:
        return ApiError(
            ErrorCode.DATA_LOSS,
            f"tokens of request {self.request_id} are missing; send it again",
            expected=f"output index {self.next_index} next",
            actual=f"{first_index}",
        )
