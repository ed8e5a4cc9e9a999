"""The router as a `Backend`: place, start, stream, cancel, and account for the time."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace

from baton.api.backend import (
    Finished,
    FinishReason,
    GenerateRequest,
    Health,
    ModelInfo,
    TokenEvent,
)
from baton.api.errors import ApiError, ErrorCode
from baton.router.answer_stream import AnswerStream
from baton.router.cache_flush import flush_all
from baton.router.changed import Changed
from baton.router.cluster_info import engine_settings, worker_info
from baton.router.config import RouterConfig
from baton.router.live_requests import LiveRequest, LiveRequests
from baton.router.metrics import RouterMetrics
from baton.router.placement import Placement, Placer
from baton.router.rank_session import RankSession, SessionOptions
from baton.router.ranks import Ranks
from baton.router.state_book import StateBook
from baton.router.worker_table import Change, Role, Worker, WorkerTable

log = logging.getLogger(__name__)


class RouterBackend:
    """Implements `baton.api.backend.Backend` over the workers of `table`. Needs a running loop."""

    def __init__(
        self,
        config: RouterConfig,
        model: ModelInfo,
        table: WorkerTable,
        options: SessionOptions,
        metrics: RouterMetrics,
    ) -> None:
        self._config = config
        self._model = model
        self._table = table
        self._router_id = options.router_id
        self._clock = options.clock
        self._metrics = metrics
        self._started = options.clock()
        self._live = LiveRequests(config.max_queued, config.retry_after_s)
        self.changed = Changed()
        """Fires when placement or health may differ; while closing, at each request's end too."""
        self._ranks = Ranks(table, options, self.changed.fire)
        self._placer = Placer(
            table,
            lambda worker: self._ranks.session(worker) is not None,
            config.policy,
            config.prefill_fallbacks,
        )
        self._states = StateBook(table)
        table.subscribe(self._on_change)
        metrics.active.set_function(lambda: len(self._live))

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Raises `ApiError` where it never started; a later failure is in `Finished`."""
        live = self._admit(request)
        limit = self._config.request_timeout_s
        timeout = asyncio.get_running_loop().call_later(limit, self._time_out, live)
        try:
            while True:
                placement, session = await self._place(live)
                stream = self._dispatch(live, placement, session)
                hold = self._placer.hold(placement)
                try:
                    while isinstance(event := await stream.next(), TokenEvent):
                        if event.token_ids:
                            hold.prefilled()
                            self._given(live, stream, event.token_ids)
                        yield event
                    if stream.state_tokens:
                        self._states.keep(placement.rank, live.all_ids[: stream.state_tokens])
                    if event.error is None or not live.goes_on(event):
                        yield self._finish(live, event)
                        return
                finally:
                    hold.release()
                    session.end(stream, live.outcome)
                self._lost(live, placement.rank, event.error)
        except ApiError as error:
            live.outcome = error.code.name.lower()
            if not live.attempt:
                raise
            yield self._finish(live, live.given_up(error))
        finally:
            timeout.cancel()
            self._end(live)

    async def cancel(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            self._stop(live, "the request was cancelled")

    async def abort(self, name: str | None) -> int:
        found = self._live.named(name)
        for live in found:
            self._stop(live, "the request was aborted")
        return len(found)

    async def models(self) -> Sequence[ModelInfo]:
        """The context is the shortest of any worker's; the model's own before one is there."""
        allowed = (w.status.max_model_len for w in self._table.workers())
        shortest = min((n for n in allowed if n), default=self._model.max_model_len)
        return [replace(self._model, max_model_len=shortest)]

    async def server_info(self) -> Mapping[str, object]:
        active, capacity = len(self._live), self._placer.capacity()
        return {
            **engine_settings(self._table.workers(Role.DECODE)),
            "router": {
                "router_id": self._router_id,
                "model": self._model.model_id,
                "model_folder": self._model.root,
                "policy": self._config.policy,
                "uptime_s": self._clock() - self._started,
                "lease_ms": self._config.lease_ms,
                "active": active,
                "capacity": capacity,
                "queued": max(active - capacity, 0),
                "max_queued": self._config.max_queued,
            },
            "workers": [self._worker_info(worker) for worker in self._table.workers()],
        }

    async def health(self) -> Health:
        return self.health_now()

    def health_now(self) -> Health:
        if self._live.closing:
            return Health(False, "the router is stopping")
        missing = self._placer.missing()
        return Health(missing is None, "" if missing is None else missing.message)

    async def flush_cache(self, timeout_s: float) -> None:
        try:
            await flush_all(self._table.workers(), timeout_s)
        finally:  # some may be empty
            self._states.clear()

    def retire(self, ranks: Collection[int]) -> None:
        """These decode ranks are not started again: nobody waits for them any longer."""
        self._table.retire(ranks)
        self.changed.fire()

    async def drain(self, grace_s: float) -> None:
        """Turn new requests away, and wait up to `grace_s` for those here to end."""
        self._live.closing = True
        self.changed.fire()
        deadline = self._clock() + grace_s
        while self._live and (left := deadline - self._clock()) > 0:
            await self.changed.wait(left)

    async def stop(self) -> None:
        """Requests that are still here fail, and their ranks stop working on them."""
        self._live.closing = True
        self.changed.fire()
        await self._ranks.stop()

    def _stop(self, live: LiveRequest, why: str) -> None:
        live.stop(ApiError(ErrorCode.CANCELLED, why), FinishReason.ABORT)
        self.changed.fire()

    def _admit(self, request: GenerateRequest) -> LiveRequest:
        try:
            return self._live.admit(request, self._clock(), self._placer.capacity())
        except ApiError as error:
            self._metrics.ended(error.code.name.lower())
            raise

    async def _place(self, live: LiveRequest) -> tuple[Placement, RankSession]:
        """Wait for a worker of each role, but no longer than `worker_wait_s`. An answer that has
        begun on the rank that it is bound to, and was lost there, waits as long for that rank to
        come back; then any other goes on with it."""
        deadline = self._clock() + self._config.worker_wait_s
        pinned = live.request.routed_dp_rank
        while True:
            if live.refusal is not None:
                raise live.refusal
            self._live.check_open()
            placement = self._placer.place(pinned, live.lost_on)
            session = None if placement is None else self._ranks.session(placement.rank)
            if placement is not None and session is not None:
                return placement, session
            left = deadline - self._clock()
            if left > 0:
                await self.changed.wait(left)
            elif pinned is not None and live.attempt:
                pinned = None
            else:
                raise self._nowhere(live.request)

    def _dispatch(
        self, live: LiveRequest, placement: Placement, session: RankSession
    ) -> AnswerStream:
        before = live.stream
        state_at = self._states.deepest(live.unread_ids)
        start = live.next_attempt(placement.prefills, state_at)
        live.stream = session.start(start, 0 if before is None else before.scored_to)
        self._metrics.placed(placement.rank)
        if state_at is not None:
            self._metrics.state_known(state_at.tokens)
        if live.times.dispatched is None:
            live.times.dispatched = self._clock()
            self._metrics.dispatched(live.times.dispatched - live.times.arrived)
        return live.stream

    def _given(self, live: LiveRequest, stream: AnswerStream, token_ids: Sequence[int]) -> None:
        now, times = self._clock(), live.times
        live.output_ids += token_ids
        if times.first_out is None:
            times.first_token(live.attempt, stream.first_in or now, stream.held_us, now)
        else:
            self._metrics.between_tokens(now - times.last_out, len(token_ids))
        times.last_out = now

    def _lost(self, live: LiveRequest, rank: Worker, error: ApiError) -> None:
        """Its rank has ended the attempt: the next one goes on from the tokens so far."""
        log.warning(
            "request %s goes on elsewhere after %d tokens: %s",
            live.request.request_id, len(live.output_ids), error.message,
        )  # fmt: skip
        live.lost(rank, error)
        self._metrics.replaced(rank)

    def _finish(self, live: LiveRequest, event: Finished) -> Finished:
        timings = live.times.split(event.timings, live.attempt, self._clock())
        live.outcome = event.error.code.name.lower() if event.error else event.reason.value
        usage = event.usage
        if event.error is None:
            self._metrics.finished(usage, timings)
        else:
            usage = replace(usage, prompt_tokens=len(live.request.prompt_ids))
        return replace(event, usage=usage, timings=timings)

    def _end(self, live: LiveRequest) -> None:
        self._live.remove(live)
        self._metrics.ended(live.outcome)
        if self._live.closing:
            self.changed.fire()

    def _time_out(self, live: LiveRequest) -> None:
        limit = self._config.request_timeout_s
        error = ApiError(ErrorCode.DEADLINE_EXCEEDED, f"the answer took longer than {limit:g} s")
        live.stop(error, FinishReason.ERROR)
        self.changed.fire()

    def _nowhere(self, request: GenerateRequest) -> ApiError:
        error = self._placer.missing() or ApiError(
            ErrorCode.UNAVAILABLE,
            f"decode rank {request.routed_dp_rank} was lost and is not back after "
            f"{self._config.worker_wait_s:g} s; send it again later, or leave routed_dp_rank out "
            "to use any other",
            param="routed_dp_rank",
        )
        error.retry_after_s = self._config.retry_after_s
        return error

    def _worker_info(self, worker: Worker) -> dict[str, object]:
        reachable = worker.role is Role.PREFILL or self._ranks.session(worker) is not None
        return worker_info(
            worker,
            ready=reachable and not worker.leaving,
            placed=self._placer.placed[worker.worker_id],
            heard_s=self._table.heard_s(worker),
        )

    def _on_change(self, change: Change) -> None:
        """After `Ranks`, which subscribed first."""
        worker = change.after or change.before
        if worker is None:
            return
        log.info("%s %s", worker.worker_id, _what_happened(change))
        self._metrics.workers(worker.role, len(self._table.workers(worker.role)))
        if worker.role is Role.DECODE:
            self._count_rank(change)
        self.changed.fire()

    def _count_rank(self, change: Change) -> None:
        if change.before is None and change.after is not None:
            worker_id = change.after.worker_id
            self._metrics.rank_joined(change.after, lambda: self._placer.placed[worker_id])
        elif change.before is not None and change.after is None:
            self._metrics.rank_left(change.before)


def _what_happened(change: Change) -> str:
    if change.before is None:
        return "joined"
    return "is leaving" if change.after else f"is gone: {change.reason}"
