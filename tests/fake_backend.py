"""A neighbour of the API under test: answers from a script, follows the engine's stop rules."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import httpx

from baton.api.backend import CachePart, GenerateRequest, Health, ModelInfo, TokenEvent
from baton.core.drafts import NO_DRAFTS, DraftUsage
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason, Timings, Usage
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.text.answer import AnswerText
from baton.text.tokenizer import Tokenizer

CONTEXT = 64

Connect = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]
Serve = Callable[[], AbstractAsyncContextManager[str]]


@dataclass
class FakeBackend:
    """Says `says` (or the prompt itself), `per_event` tokens at a time."""

    tokenizer: Tokenizer
    says: str | None = None
    per_event: int = 1
    fail_first: ApiError | None = None  # instead of any event
    full: ApiError | None = None  # what no room is refused with
    fail_after: int | None = None  # tokens, then `failure`
    failure: ApiError | None = None
    hold_after: int | None = None  # tokens, then wait for a cancel
    ready: bool = True
    alive: bool = True
    seen: list[GenerateRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    flushed: list[float] = field(default_factory=list)  # the timeouts it was given
    parts: list[CachePart | None] = field(default_factory=list)  # which it was to flush
    flush_failure: ApiError | None = None
    drafts: DraftUsage = NO_DRAFTS  # of each answer
    cached_host: int = 0  # of the one token that is cached
    synthetic: float = 0.0
    _held: dict[str, tuple[GenerateRequest, asyncio.Event]] = field(default_factory=dict)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        self.seen.append(request)
        if self.fail_first is not None:
            raise self.fail_first
        if request.sampling.prompt_logprobs_start is not None:
            yield TokenEvent(0, (), prompt_logprobs=self._prompt_logprobs(request))
        ids, finished = self._answer(request)
        for start in range(0, len(ids), self.per_event):
            if await self._aborted(request, start):
                yield _abort(request, start)
                return
            some = ids[start : start + self.per_event]
            yield TokenEvent(start, tuple(some), self._logprobs(request, some))
        aborted = await self._aborted(request, len(ids))
        yield _abort(request, len(ids)) if aborted else finished

    async def _aborted(self, request: GenerateRequest, given: int) -> bool:
        """Wait for the request's abort if the backend was told to hold it. Return whether it was
        aborted."""
        if self.failure is not None and given == self.fail_after:
            raise self.failure
        if self.hold_after is None or given < self.hold_after:
            return False
        _, abort = self._held[request.request_id] = (request, asyncio.Event())
        self.holding.set()
        await asyncio.wait_for(abort.wait(), 60)
        return True

    def _answer(self, request: GenerateRequest) -> tuple[list[int], Finished]:
        params = request.sampling
        script = list(request.prompt_ids)
        if self.says is not None:
            script = self.tokenizer.encode(self.says)
        text = AnswerText(
            self.tokenizer,
            params.stop,
            stop_regex=params.stop_regex,
            include_stop=params.include_stop,
            min_tokens=params.min_tokens,
        )
        ids: list[int] = []
        for token in script[: params.max_tokens]:
            ids.append(token)
            text.push([token])
            if text.match:
                break
        cut = text.end()
        stopped = text.match is not None or len(ids) < params.max_tokens
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        finished = Finished(
            End(reason, stop_string=text.match.stop if text.match else "", cut_chars=cut),
            usage=Usage(len(request.prompt_ids), len(ids), 1, self.cached_host, drafts=self.drafts),
            timings=Timings(prefill_us=5, ttft_us=7, e2e_us=9),
            synthetic_acceptance=self.synthetic,
        )
        return ids, finished

    def _logprobs(self, request: GenerateRequest, ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        top = request.sampling.logprobs
        asked = request.sampling.logprob_token_ids
        return () if top is None else tuple(entry(i, top, asked) for i in ids)

    def _prompt_logprobs(self, request: GenerateRequest) -> PromptLogprobs:
        start = request.sampling.prompt_logprobs_start
        assert start is not None
        sampling = request.sampling
        top, asked = sampling.prompt_logprobs, sampling.logprob_token_ids
        entries = [entry(i, top, asked) for i in request.prompt_ids[start:]]
        if start == 0:
            entries[0] = TokenLogprob(request.prompt_ids[0], None)
        return PromptLogprobs(start, tuple(entries))

    def check_room(self, owner: str | None) -> None:
        if self.full is not None:
            raise self.full

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.was_cancelled.set()

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        found = [abort for request, abort in self._held.values() if request.is_meant(name, owner)]
        for abort in found:
            abort.set()
        return len(found)

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("toy", CONTEXT, self.tokenizer.vocab_size, created=1, root="/models/toy")]

    async def server_info(self) -> Mapping[str, object]:
        return {"workers": 0}

    async def health(self) -> Health:
        return Health(self.ready, "" if self.ready else "no decode rank has registered", self.alive)

    async def flush_cache(self, timeout_s: float, part: CachePart | None = None) -> None:
        self.flushed.append(timeout_s)
        self.parts.append(part)
        if self.flush_failure is not None:
            raise self.flush_failure


def _abort(request: GenerateRequest, given: int) -> Finished:
    error = ApiError(ErrorCode.CANCELLED, "the request was aborted")
    usage = Usage(len(request.prompt_ids), given)
    return Finished(End(FinishReason.ABORT), usage=usage, error=error)


def entry(token_id: int, top: int, asked: Sequence[int]) -> TokenLogprob:
    """Log probabilities that a test can compute again: minus the rank, minus one; minus the id of
    those that are asked about."""
    ids = (token_id, *range(70, 70 + top))[:top]
    tops = tuple(-1.0 - k for k in range(top))
    return TokenLogprob(token_id, -1.0, ids, tops, tuple(-float(i) for i in asked))
