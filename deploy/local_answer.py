"""One answer of an engine in this process: its events in the API's terms."""

import asyncio
import time

from baton.api.backend import (
    Finished,
    FinishReason,
    GenerateRequest,
    PromptLogprobs,
    Timings,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from baton.api.errors import ApiError, ErrorCode
from baton.engine import events as engine_events


class LocalAnswer:
    """Written by the engine's port, read by one handler, both on one loop."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.over = False
        """`Finished`, or the error instead of it, lies here or was read."""
        self.queued = False
        """In the engine; before that, its grammar is compiled."""
        self._arrived_s = time.monotonic()
        self._scheduled_s = self._arrived_s
        self._first_s: float | None = None  # when the first token was there
        self._given = 0
        self._events: asyncio.Queue[TokenEvent | Finished | ApiError] = asyncio.Queue()

    async def next(self) -> TokenEvent | Finished:
        """Raises the `ApiError` that it failed with."""
        event = await self._events.get()
        if isinstance(event, ApiError):
            raise event
        return event

    def fail(self, error: ApiError) -> None:
        """Nothing more comes of it."""
        if not self.over:
            self.over = True
            self._events.put_nowait(error)

    def feed(self, event: engine_events.Event, at_s: float) -> None:
        """at_s: when it came, by `time.monotonic`."""
        if self.over:
            return
        match event:
            case engine_events.Scheduled():
                self._scheduled_s = at_s
            case engine_events.PromptScored():
                scores = tuple(map(_logprob, event.logprobs))
                prompt = PromptLogprobs(event.start, scores)
                self._events.put_nowait(TokenEvent(self._given, (), prompt_logprobs=prompt))
            case engine_events.TokenSampled():
                self._sampled(event, at_s)
            case engine_events.Finished():
                self.over = True
                self._events.put_nowait(self._finished(event, at_s))

    def _sampled(self, event: engine_events.TokenSampled, at_s: float) -> None:
        if self._first_s is None:
            self._first_s = at_s
        self._given = event.index + 1
        logprobs = () if event.logprob is None else (_logprob(event.logprob),)
        self._events.put_nowait(TokenEvent(event.index, (event.token_id,), logprobs))

    def _finished(self, event: engine_events.Finished, at_s: float) -> Finished:
        return Finished(
            FinishReason(event.reason.value),
            stop_token_id=event.stop_token_id,
            stop_string=event.stop_string or "",
            cut_chars=event.cut_chars,
            usage=Usage(event.prompt_tokens, event.completion_tokens, event.cached_tokens),
            timings=self._timings(at_s),
            error=_error(event),
        )

    def _timings(self, at_s: float) -> Timings:
        first_s = at_s if self._first_s is None else self._first_s
        return Timings(
            prefill_queue_us=_us(self._scheduled_s - self._arrived_s),
            prefill_us=_us(first_s - self._scheduled_s),
            ttft_us=_us(first_s - self._arrived_s) if self._first_s is not None else 0,
            e2e_us=_us(at_s - self._arrived_s),
        )


def _error(event: engine_events.Finished) -> ApiError | None:
    match event.reason:
        case engine_events.FinishReason.ABORT:
            return ApiError(ErrorCode.CANCELLED, event.error or "the request was cancelled")
        case engine_events.FinishReason.ERROR:
            return ApiError(ErrorCode.INTERNAL, event.error or "the request failed")
    return None


def _logprob(entry: engine_events.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        entry.token_id, entry.logprob, entry.top_ids, entry.top_logprobs, entry.asked_logprobs
    )


def _us(seconds: float) -> int:
    return round(max(0.0, seconds) * 1e6)
