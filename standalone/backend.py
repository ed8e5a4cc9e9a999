"""One engine in this process as a `Backend`: no router, no hand-offs."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from time import monotonic

from baton.api.admission.admission_queue import AdmissionQueue, QueueBounds
from baton.api.admission.defaults import MAX_QUEUED, MAX_QUEUED_TOKENS
from baton.api.admission.room import CHUNKS_AHEAD, DECODES_AHEAD, Room
from baton.api.answer_queue import StreamPace
from baton.api.backend import CachePart, GenerateRequest, Health, ModelInfo, TokenEvent
from baton.api.client_salt import in_scope, salts_of
from baton.api.errors import invalid, refused
from baton.core.cache_salt import CacheScope
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError, StoppedError, StoppingError
from baton.core.finish import Finished, FinishReason
from baton.engine.engine import Engine
from baton.engine.request.events import RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.settings.counters import Counters
from baton.engine.status import EngineStatus
from baton.engine.tiers.file_folder import KeptFileError
from baton.rpc.errors import error_from_proto, error_of
from baton.rpc.metric_aliases.figures import accept_length
from baton.standalone.answer import StandaloneAnswer
from baton.text.grammar import CompiledGrammar
from baton.worker.cache_flush import flush_when_idle
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.figures import totals_of
from baton.worker.metrics import WorkerMetrics
from baton.worker.settings import engine_settings


class StandaloneBackend:
    """A `baton.api.backend.Backend` on the asyncio thread.

    The owner of `context.port` passes the engine's events to it.
    """

    def __init__(
        self,
        context: WorkerContext,
        model: ModelInfo,
        cache_scope: CacheScope = CacheScope.SHARED,
        share_of: Callable[[str | None], float] = lambda owner: 1.0,
        stream_interval: int = 1,
    ) -> None:
        """
        cache_scope: the requests that share cached prefixes.
        share_of: returns the share of an API key.
        stream_interval: the tokens that a stream gets at once at least.
        """
        self._pace = StreamPace(stream_interval)
        self._context = context
        self._cache_scope = cache_scope
        self._model = replace(model, max_model_len=context.engine.plan.max_model_len)
        self._answers: dict[str, StandaloneAnswer] = {}  # by request id
        self._failure: ApiError | None = None  # why no request can be answered any more
        self._leaving = False  # no more requests are taken
        self._computing: set[str] = set()  # ids of requests in the engine, whoever still waits
        self._in_engine = 0  # answers whose requests were given to the engine, and are not over
        # The engine is given few more than it runs: those that wait here can still be put into
        # another order, or be displaced by the request of another API key.
        self._queue = AdmissionQueue(
            QueueBounds(MAX_QUEUED, MAX_QUEUED_TOKENS),
            self._room,
            lambda: self._most_running,
            share_of,
            monotonic,
        )
        context.metrics.count_waiting(lambda: self._queue.waiting)

    @property
    def busy(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._answers)

    @property
    def failure(self) -> str:
        """Return the reason why no request can be answered any more; empty while they can."""
        return "" if self._failure is None else self._failure.message

    def on_batch(self, batch: EventBatch) -> None:
        for event in batch.events:
            answer = self._answers.get(event.request_id)
            if answer is not None:
                answer.feed(event, batch.at_s)
            if isinstance(event, RequestFinished) and event.request_id in self._computing:
                self._computing.remove(event.request_id)
                _count_tokens(self._context.metrics, event)

    def on_end(self, error: StoppedError) -> None:
        """Fail all requests with the reason why the process ends."""
        self._fail_all(self._error_of(error))

    def leave(self) -> None:
        """Refuse new requests, and be not ready. Those that were taken go on."""
        self._leaving = True

    def close(self) -> None:
        """Fail the running requests and refuse new ones."""
        self._fail_all(StoppingError("the worker is stopping", self._context.worker_id))

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Yield tokens, then `Finished`.

        Raises `ApiError` if the request cannot start; a later failure is in `Finished`.
        """
        answer = self._admit(request)
        place = answer.place
        given = 0
        outcome = _outcome(ErrorCode.CANCELLED)  # of a client that leaves
        try:
            with self._timed(answer):
                await place.turn()
                self._begin(answer)
                while isinstance(event := await answer.next(), TokenEvent):
                    if event.token_ids:
                        place.first_token()
                        given += len(event.token_ids)
                    yield event
            outcome = event.end.reason.value if event.error is None else _outcome(event.error.code)
            drawn = self._context.config.engine.speculative_synthetic_acceptance
            yield replace(event, synthetic_acceptance=drawn or 0.0)
        except ApiError as error:
            outcome = _outcome(error.code)
            raise
        finally:
            self._context.metrics.count_request(outcome)
            del self._answers[request.request_id]
            self._in_engine -= answer.begun
            place.leave(given)
            if not answer.over:
                self._cancel(answer, "the client left")

    def check_room(self, owner: str | None) -> None:
        with _refusals(self._context.metrics):
            self._check_open()
            self._queue.check(owner)

    async def cancel(self, request_id: str) -> None:
        answer = self._answers.get(request_id)
        if answer is not None:
            self._cancel(answer, "the request was cancelled")

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        found = [
            answer for answer in self._answers.values() if answer.request.is_meant(name, owner)
        ]
        for answer in found:
            self._cancel(answer, "the request was aborted")
        return len(found)

    async def models(self) -> Sequence[ModelInfo]:
        return [self._model]

    async def server_info(self) -> Mapping[str, object]:
        """Return the settings, and the engine's present state and counters."""
        status, counters = await self._context.port.call(_look)
        config, plan = self._context.config, self._context.engine.plan
        settings = engine_settings(config.engine, plan)
        now = {
            "worker_id": config.worker_id,
            "role": config.role.value,
            "running": status.running,
            "waiting": self._queue.waiting + status.waiting,
            "waiting_tokens": self._queue.waiting_tokens,  # of those before the engine
            "slots": {owner.value: count for owner, count in status.slots.items()},
            "pages": {owner.value: count for owner, count in status.pages.items()},
            "host_slots": {owner.value: count for owner, count in status.host_slots.items()},
            "host_pages": {owner.value: count for owner, count in status.host_pages.items()},
            "files": status.files._asdict() if status.files is not None else None,
            "counters": asdict(counters),
            "memory_plan": self._context.engine.memory_report,
        }
        drafts = accept_length(totals_of(counters))
        return {**settings, "dp_size": 1, "internal_states": [now | settings | drafts]}

    async def health(self) -> Health:
        if self._failure is None and self._leaving:
            return Health(False, _STOPPING)
        alive = self._failure is None
        return Health(alive, self.failure, alive)

    async def flush_cache(self, timeout_s: float, part: CachePart | None = None) -> None:
        salts = salts_of(part, self._cache_scope)
        try:
            flushed = await flush_when_idle(self._context.port, timeout_s, salts)
        except KeptFileError as error:
            raise ApiError(error.code, str(error), origin=self._context.worker_id) from error
        if not flushed:
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"still at work after {timeout_s:g} s; the cache was not flushed: wait longer, or "
                "abort what runs",
                origin=self._context.worker_id,
            )

    @property
    def _most_running(self) -> int:
        return self._context.engine.plan.max_running

    def _room(self) -> Room:
        spare = self._most_running + DECODES_AHEAD - self._in_engine
        chunk = self._context.engine.plan.chunked_prefill_size
        return Room(max(spare, 0), {0: spare}, 1, CHUNKS_AHEAD * chunk)

    def _check_open(self) -> None:
        """Raise the reason why no request is taken, if there is one."""
        if self._failure is not None:
            raise self._failure
        if self._leaving:
            raise StoppingError(_STOPPING, self._context.worker_id)

    def _admit(self, request: GenerateRequest) -> StandaloneAnswer:
        """Give a request its place in the queue. Raises `ApiError`."""
        with _refusals(self._context.metrics):
            self._check_open()
            if request.routed_dp_rank:
                raise _no_such_rank(request.routed_dp_rank)
            if request.explain:
                raise refused("explain", _NO_ROUTER)
            request = in_scope(request, self._cache_scope)
            place = self._queue.enter(request)
        answer = StandaloneAnswer(request, self._context.worker_id, place, self._pace)
        self._answers[request.request_id] = answer
        return answer

    def _begin(self, answer: StandaloneAnswer) -> None:
        """Give a request whose turn has come to the engine."""
        answer.begin()
        self._in_engine += 1
        answer.place.placed()
        self._submit(answer)

    def _submit(self, answer: StandaloneAnswer) -> None:
        request = answer.request
        try:
            spec = RequestSpec(
                request.request_id,
                request.prompt_ids,
                request.sampling.seeded(),
                priority=request.priority + answer.place.boost,
                cache_salt=request.cache_salt,
                prediction_ids=request.prediction_ids,
                draft_scope=request.draft_scope,
            )
        except RequestError as error:
            raise self._error_of(error) from error
        self._context.grammars.compile(
            spec.sampling.grammar,
            lambda grammar: self._hand_in(answer, spec, grammar),
            lambda error: answer.fail(self._error_of(error)),
        )

    def _hand_in(
        self, answer: StandaloneAnswer, spec: RequestSpec, grammar: CompiledGrammar | None
    ) -> None:
        if answer.over:  # it was cancelled meanwhile
            return
        answer.queued = True
        self._computing.add(spec.request_id)

        def fail(error: BaseException) -> None:
            self._computing.discard(spec.request_id)
            answer.fail(self._error_of(error))

        self._context.port.request(
            lambda engine: engine.submit(spec, grammar), lambda _: None, fail
        )

    @contextmanager
    def _timed(self, answer: StandaloneAnswer) -> Iterator[None]:
        """Stop the answer at its deadline."""
        deadline = answer.request.deadline
        if deadline is None:
            yield
            return

        def stop() -> None:
            error = deadline.passed()
            answer.place.refuse(error)
            if answer.queued and not answer.over:
                self._cancel(answer, error.message)
            answer.end(error)

        timer = asyncio.get_running_loop().call_later(deadline.left_s, stop)
        try:
            yield
        finally:
            timer.cancel()

    def _cancel(self, answer: StandaloneAnswer, reason: str) -> None:
        if not answer.queued:
            error = ApiError(ErrorCode.CANCELLED, reason)
            answer.place.refuse(error)
            answer.fail(error)
            return
        name = answer.request.request_id
        self._context.port.post(lambda engine: engine.cancel(name, reason), "cancel")

    def _fail_all(self, error: ApiError) -> None:
        self._failure = error
        self._queue.refuse_all(error)
        for answer in self._answers.values():
            answer.fail(error)
            self._cancel(answer, error.message)

    def _error_of(self, error: BaseException) -> ApiError:
        return error_from_proto(error_of(error, self._context.worker_id))


_STOPPING = "the worker is stopping; ask another one, or this one when it has started again"
_NO_ROUTER = "this worker answers by itself: no router places requests here; leave explain out"


def _outcome(code: ErrorCode) -> str:
    return code.name.lower()


@contextmanager
def _refusals(metrics: WorkerMetrics) -> Iterator[None]:
    """Count a request that is refused inside."""
    try:
        yield
    except ApiError as error:
        metrics.count_request(_outcome(error.code))
        raise


def _count_tokens(metrics: WorkerMetrics, event: RequestFinished) -> None:
    """Count what a request computed. One that was broken off before its first token has not
    computed its whole prompt.
    """
    usage = event.usage
    if usage.completion_tokens or event.end.reason not in (FinishReason.ABORT, FinishReason.ERROR):
        metrics.count_tokens("prompt", usage.prompt_tokens - usage.cached_tokens)
    metrics.count_tokens("output", usage.completion_tokens)


def _look(engine: Engine) -> tuple[EngineStatus, Counters]:
    return engine.status(), replace(engine.counters)


def _no_such_rank(rank: int) -> ApiError:
    return invalid(
        "routed_dp_rank",
        f"routed_dp_rank is {rank}; this worker is the only rank, 0",
        expected="0, or no rank",
        actual=rank,
    )
