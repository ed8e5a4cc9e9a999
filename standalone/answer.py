"""One answer of an engine in this process, as events of the API."""

import time

from baton.api.admission.admission_queue import QueuePlace
from baton.api.answer_queue import AnswerQueue, StreamPace
from baton.api.backend import GenerateRequest, TokenEvent
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason, Timings, Usage
from baton.engine.request import events as engine_events
from baton.worker.convert import finished_of


class StandaloneAnswer:
    """The events of one request.

    The engine's port writes them and one handler reads them, on the same event loop.
    """

    def __init__(
        self, request: GenerateRequest, worker_id: str, place: QueuePlace, pace: StreamPace
    ) -> None:
        """worker_id: the origin that an error names. place: in the queue before the engine. pace:
        of all answers."""
        self.request = request
        self.place = place
        self._worker_id = worker_id
        self.over = False
        """`Finished`, or the error instead of it, lies here or was read."""
        self.begun = False
        """True once the request's turn has come."""
        self.queued = False
        """True once the request is in the engine; before that, its grammar is compiled."""
        self._arrived_s = time.monotonic()
        self._begun_s = self._arrived_s
        self._scheduled_s = self._arrived_s
        self._first_s: float | None = None  # when the first token was there
        self._given = 0
        self._events = AnswerQueue(pace)

    def begin(self) -> None:
        """Note that the request's turn has come."""
        self.begun = True
        self._begun_s = self._scheduled_s = time.monotonic()

    async def next(self) -> TokenEvent | Finished:
        """Wait for the next event. Raises the request's `ApiError`."""
        return await self._events.next()

    def fail(self, error: ApiError) -> None:
        """End the answer with an error. Idempotent."""
        if not self.over:
            self.over = True
            self._events.end(error)

    def end(self, error: ApiError) -> None:
        """End the answer with the tokens that it has so far, and `error`. Idempotent."""
        if not self.over:
            self.over = True
            usage = Usage(len(self.request.prompt_ids), self._given)
            self._events.end(Finished(End(FinishReason.ERROR), usage=usage, error=error))

    def feed(self, event: engine_events.Event, at_s: float) -> None:
        """Add an engine event.

        at_s: when it arrived, by `time.monotonic`.
        """
        if self.over:
            return
        match event:
            case engine_events.Scheduled():
                self._scheduled_s = at_s
            case engine_events.PromptScored():
                self._events.put(TokenEvent(self._given, (), prompt_logprobs=event.scores))
            case engine_events.TokenSampled():
                self._sampled(event, at_s)
            case engine_events.RequestFinished():
                self.over = True
                self._events.end(self._finished(event, at_s))

    def _sampled(self, event: engine_events.TokenSampled, at_s: float) -> None:
        if self._first_s is None:
            self._first_s = at_s
        self._given = event.index + 1
        logprobs = () if event.logprob is None else (event.logprob,)
        self._events.put(TokenEvent(event.index, (event.token_id,), logprobs))

    def _finished(self, event: engine_events.RequestFinished, at_s: float) -> Finished:
        return finished_of(event, self._worker_id, self._timings(at_s))

    def _timings(self, at_s: float) -> Timings:
        first_s = at_s if self._first_s is None else self._first_s
        return Timings(
            router_queue_us=_us(self._begun_s - self._arrived_s),
            prefill_queue_us=_us(self._scheduled_s - self._begun_s),
            prefill_us=_us(first_s - self._scheduled_s),
            ttft_us=_us(first_s - self._arrived_s) if self._first_s is not None else 0,
            e2e_us=_us(at_s - self._arrived_s),
        )


def _us(seconds: float) -> int:
    return round(max(0.0, seconds) * 1e6)
