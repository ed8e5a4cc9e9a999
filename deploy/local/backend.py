"""One engine in this process as a `Backend`: no router, no hand-offs."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from baton.api.backend import GenerateRequest, Health, ModelInfo, TokenEvent
from baton.api.client_salt import in_scope
from baton.api.errors import RETRY_AFTER_S
from baton.core.cache_salt import CacheScope
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.finish import Finished
from baton.deploy.local.answer import LocalAnswer
from baton.engine.counters import Counters
from baton.engine.engine import Engine
from baton.engine.schedule.request import RequestSpec
from baton.engine.status import EngineStatus
from baton.router.admission.drain_rate import DrainRate
from baton.router.defaults import MAX_QUEUED
from baton.rpc.errors import error_from_proto, error_of
from baton.text.grammar import CompiledGrammar
from baton.worker.cache_flush import flush_when_idle
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.settings import engine_settings


class LocalBackend:
    """A `baton.api.backend.Backend` and `EngineBatchHandler` on the asyncio thread.

    The owner of `context.port` passes the engine's events to it.
    """

    def __init__(
        self,
        context: WorkerContext,
        model: ModelInfo,
        cache_scope: CacheScope = CacheScope.SHARED,
    ) -> None:
        """cache_scope: the requests that share cached prefixes."""
        self._context = context
        self._cache_scope = cache_scope
        self._model = replace(model, max_model_len=context.engine.plan.max_model_len)
        self._answers: dict[str, LocalAnswer] = {}  # by request id
        self._failure: ApiError | None = None  # why no request can be answered any more
        self._rate = DrainRate(time.monotonic)  # of requests, while some wait

    @property
    def busy(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._answers)

    def on_batch(self, batch: EventBatch) -> None:
        for event in batch.events:
            answer = self._answers.get(event.request_id)
            if answer is not None:
                answer.feed(event, batch.at_s)

    def on_engine_failure(self, error: Exception) -> None:
        self._fail_all(self._error_of(error))

    def close(self) -> None:
        """Fail the running requests and refuse new ones."""
        self._fail_all(ApiError(ErrorCode.UNAVAILABLE, "the worker is stopping"))

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Yield tokens, then `Finished`.

        Raises `ApiError` if the request cannot start; a later failure is in `Finished`.
        """
        self._check_room()
        request = in_scope(request, self._cache_scope)
        answer = self._answers[request.request_id] = LocalAnswer(request, self._context.worker_id)
        if self.busy == self._most_running + 1:
            self._rate.begin()
        try:
            self._submit(answer)
            with self._timed(answer):
                while isinstance(event := await answer.next(), TokenEvent):
                    yield event
            self._count(event)
            yield event
        finally:
            del self._answers[request.request_id]
            self._rate.left(1)
            if self.busy == self._most_running:
                self._rate.end()
            if not answer.over:
                self._cancel(answer, "the client left")

    def check_room(self, owner: str | None) -> None:
        self._check_room()

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
            "waiting": status.waiting,
            "slots": {owner.value: count for owner, count in status.slots.items()},
            "pages": {owner.value: count for owner, count in status.pages.items()},
            "counters": asdict(counters),
            "memory_plan": plan.describe(),
        }
        return {**settings, "dp_size": 1, "internal_states": [now | settings]}

    async def health(self) -> Health:
        failure = self._failure
        alive = failure is None
        return Health(alive, "" if failure is None else failure.message, alive)

    async def flush_cache(self, timeout_s: float) -> None:
        if not await flush_when_idle(self._context.port, timeout_s):
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"still at work after {timeout_s:g} s; the cache was not flushed: wait longer, or "
                "abort what runs",
                origin=self._context.worker_id,
            )

    @property
    def _most_running(self) -> int:
        return self._context.config.engine.max_running

    def _check_room(self) -> None:
        """Raise OVERLOADED at the limit, or the reason why the engine has stopped."""
        if self._failure is not None:
            raise self._failure
        bound = self._most_running + MAX_QUEUED
        if self.busy >= bound:
            raise ApiError(
                ErrorCode.OVERLOADED,
                f"{self.busy} requests are here already; send it again later",
                expected=f"fewer than {bound}",
                actual=str(self.busy),
                origin=self._context.worker_id,
                # By then, those that wait now run.
                retry_after_s=self._rate.seconds_for(self.busy - self._most_running, RETRY_AFTER_S),
            )

    def _submit(self, answer: LocalAnswer) -> None:
        request = answer.request
        try:
            spec = RequestSpec(
                request.request_id,
                request.prompt_ids,
                request.sampling.seeded(),
                priority=request.priority,
                cache_salt=request.cache_salt,
            )
        except RequestError as error:
            raise self._error_of(error) from error
        self._context.grammars.compile(
            spec.sampling.grammar,
            lambda grammar: self._queue(answer, spec, grammar),
            lambda error: answer.fail(self._error_of(error)),
        )

    def _queue(
        self, answer: LocalAnswer, spec: RequestSpec, grammar: CompiledGrammar | None
    ) -> None:
        if answer.over:  # it was cancelled meanwhile
            return
        answer.queued = True
        self._context.port.request(
            lambda engine: engine.submit(spec, grammar),
            lambda _: None,
            lambda error: answer.fail(self._error_of(error)),
        )

    @contextmanager
    def _timed(self, answer: LocalAnswer) -> Iterator[None]:
        """Stop the answer at its deadline."""
        deadline = answer.request.deadline
        if deadline is None:
            yield
            return

        def stop() -> None:
            error = deadline.passed()
            if answer.queued and not answer.over:
                self._cancel(answer, error.message)
            answer.end(error)

        timer = asyncio.get_running_loop().call_later(deadline.left_s, stop)
        try:
            yield
        finally:
            timer.cancel()

    def _cancel(self, answer: LocalAnswer, reason: str) -> None:
        if not answer.queued:
            answer.fail(ApiError(ErrorCode.CANCELLED, reason))
            return
        name = answer.request.request_id
        self._context.port.post(lambda engine: engine.cancel(name, reason), "cancel")

    def _count(self, finished: Finished) -> None:
        metrics, usage = self._context.metrics, finished.usage
        metrics.count_request(finished.reason.value)
        metrics.count_tokens("prompt", usage.prompt_tokens - usage.cached_tokens)
        metrics.count_tokens("output", usage.completion_tokens)

    def _fail_all(self, error: ApiError) -> None:
        self._failure = error
        for answer in self._answers.values():
            answer.fail(error)
            self._cancel(answer, error.message)

    def _error_of(self, error: BaseException) -> ApiError:
        return error_from_proto(error_of(error, self._context.worker_id))


def _look(engine: Engine) -> tuple[EngineStatus, Counters]:
    return engine.status(), replace(engine.counters)
