"""One attempt's answer on its way from the rank's session to the client's handler."""

import asyncio
from collections import deque
from collections.abc import Callable

from baton.api.backend import Finished, FinishReason, PromptLogprobs, TokenEvent, Usage
from baton.api.errors import ApiError, ErrorCode
from baton.api.wire import finished_from_proto, logprob_from_proto, prompt_logprobs_from_proto
from baton.proto.worker_pb2 import RequestTokens

JOINED = 256
"""Tokens in one event, about: to join is to copy, and a reader may be a whole answer behind."""


class AnswerStream:
    """Written by one session, read by one handler, on one loop.

    Tokens that were given before are dropped, whoever sends them again; the reader sees every
    index once and in order, and `Finished` last. Tokens that a slow reader has not taken yet are
    joined, so that one who is behind catches up, and what lies here is bounded by the answer.
    """

    def __init__(
        self,
        request_id: str,
        attempt: int,
        clock: Callable[[], float],
        *,
        given: int = 0,
        scored_to: int = 0,
    ) -> None:
        """given, scored_to: output tokens and prompt scores that earlier attempts brought."""
        self.request_id = request_id
        self.attempt = attempt
        self.next_index = given
        """Output tokens so far."""
        self.first_in: float | None = None
        """When the first token arrived, on `clock`."""
        self.held_us = 0
        """How long the rank held the first token."""
        self.rank_done = False
        """The rank works on it no more: it said so, or it was lost."""
        self.scored_to = scored_to
        """The first prompt position whose score has not come."""
        self.state_tokens = 0
        """Of prompt and answer: the rank has kept the state after these. Set at the end."""
        self._over = False
        self._clock = clock
        self._events: deque[TokenEvent | Finished] = deque()
        self._reader: asyncio.Future[None] | None = None  # the reader waits for it

    async def next(self) -> TokenEvent | Finished:
        """The session ends every stream it is given, so this ends when the rank does."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._events.popleft()

    def feed(self, tokens: RequestTokens) -> None:
        """Take what the rank sent; other attempts' tokens are nobody's."""
        if self._over or tokens.attempt != self.attempt:
            return
        if tokens.first_index > self.next_index:
            self.fail(self._gap(tokens.first_index))
            return
        event = self._new_part(tokens)
        if event is not None:
            self._put(event)
        if tokens.HasField("finished"):
            self.rank_done = True
            self.state_tokens = tokens.finished.state_tokens
            self._end(finished_from_proto(tokens.finished))

    def fail(self, error: ApiError, reason: FinishReason = FinishReason.ERROR) -> None:
        """End it from this side; nothing where it has ended."""
        if not self._over:
            usage = Usage(completion_tokens=self.next_index)
            self._end(Finished(reason, usage=usage, error=error))

    def _put(self, event: TokenEvent) -> None:
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, TokenEvent)
            and len(last.token_ids) < JOINED
            and last.prompt_logprobs is event.prompt_logprobs is None
        ):
            ids, logprobs = last.token_ids + event.token_ids, last.logprobs + event.logprobs
            self._events[-1] = TokenEvent(last.first_index, ids, logprobs)
        else:
            self._events.append(event)
        self._wake()

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
        self._events.append(finished)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _gap(self, first_index: int) -> ApiError:
        return ApiError(
            ErrorCode.DATA_LOSS,
            f"tokens of request {self.request_id} are missing; send it again",
            expected=f"output index {self.next_index} next",
            actual=f"{first_index}",
        )
