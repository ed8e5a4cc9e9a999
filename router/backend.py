"""The router as a `Backend`: it places, starts, streams and cancels requests, and measures them."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from baton.api.admission.admission_queue import AdmissionQueue, QueueBounds, QueuePlace
from baton.api.admission.fair_queue import KeyName
from baton.api.admission.key_limit import KeyLimit
from baton.api.backend import CachePart, GenerateRequest, Health, ModelInfo, TokenEvent
from baton.api.client_salt import in_scope, salts_of
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, StoppedError
from baton.core.finish import Finished, FinishReason, altered
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.router.binder import Binder
from baton.router.cache_flush import flush_all
from baton.router.cluster_info import engine_settings, notes_info, worker_info
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.router.config import RouterConfig
from baton.router.demands import Demands
from baton.router.dump.request_dump import RequestDump
from baton.router.explain.explanations import Explanations
from baton.router.metrics import RouterMetrics
from baton.router.notifier import Notifier
from baton.router.placement.assignment import Assignment
from baton.router.placement.placer import Placer
from baton.router.placement.prefill_here import PrefillHere
from baton.router.policies.registry import POLICIES
from baton.router.request_trace import RequestTrace
from baton.router.sessions.answer_stream import AnswerStream
from baton.router.sessions.live_requests import LiveRequest, LiveRequests, stopping
from baton.router.sessions.rank_session import RankSession, SessionOptions
from baton.router.sessions.rank_sessions import RankSessions
from baton.router.sessions.recalls import Recalls
from baton.router.sessions.request_history import LEFT, LOST, RETURNED, PlacedAttempt
from baton.rpc.tracing import Tracing

log = logging.getLogger(__name__)


class RouterBackend:
    """A `Backend` over the workers of `table`. It needs a running event loop."""

    def __init__(
        self,
        config: RouterConfig,
        model: ModelInfo,
        table: WorkerTable,
        options: SessionOptions,
        metrics: RouterMetrics,
        share_of: Callable[[KeyName], float],
        owner: ProcessSupervisor,
        dump: RequestDump | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """share_of: returns the share of an API key where requests wait.
        owner: of all that runs beside this in the process.
        dump: where requests are recorded as they end; None: nowhere.
        tracing: where spans are sent; None: nowhere.
        """
        self._config = config
        self._model = model
        self._table = table
        self._router_id = options.router_id
        self._credentials = options.credentials
        self._clock = options.clock
        self._metrics = metrics
        self._dump = dump
        self._tracing = tracing
        self._started = options.clock()
        self._live = LiveRequests()
        self.changed = Notifier()
        """Notified when placement or health may differ, and at each request's end while closing."""
        self._ranks = RankSessions(table, options, self._workers_changed, owner)
        self.states = states = StateIndex(table, clock=options.clock)
        self.explanations = Explanations(self._router_id, self._live, states.evictions, self._clock)
        self._placer = Placer(
            table,
            self.states,
            lambda worker: self._ranks.session(worker) is not None,
            POLICIES[config.policy](),
            prefill_here=PrefillHere(config.prefill_here, config.itl_target_s),
        )
        self._queue = AdmissionQueue(
            QueueBounds(config.max_queued, config.max_queued_tokens),
            self._placer.room,
            self._placer.capacity,
            share_of,
            options.clock,
            metrics.queue.refused,
            KeyLimit(config.key_slowdown, options.step_times, options.clock),
        )
        self._binder = Binder(
            self._live,
            table,
            self._placer,
            self._ranks,
            self.changed,
            config.worker_wait_s,
            options.clock,
        )
        self.recalls = Recalls(self._placer.places, lambda: not self._queue.unplaced, options.clock)
        """Its `run` must be awaited beside the servers."""
        self.demands = Demands(table, self._placer, self._queue)
        table.subscribe(self._on_change)
        metrics.serves(lambda: len(self._live), self._placer.capacity)
        metrics.queue.serves(self._queue)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Yield the answer's events.

        Raises `ApiError` for a request that never started. A later failure is in `Finished`.
        """
        live, place = self._admit(in_scope(request, self._config.cache_scope))
        limit = self._config.request_timeout_s
        if request.deadline is not None:
            limit = min(limit, request.deadline.left_s)
        timeout = asyncio.get_running_loop().call_later(limit, self._time_out, live)
        try:
            while True:
                assignment, session = await self._binder.bind(live, place)
                stream = self._dispatch(live, assignment, session)
                in_flight = self._placer.track(assignment)
                bound = self.recalls.add(live, assignment, session, stream)
                place.placed(here=assignment.here)
                prefilling = True
                try:
                    while isinstance(event := await stream.next(), TokenEvent):
                        if event.token_ids:
                            if prefilling:
                                prefilling = False
                                in_flight.prefill_done()
                                place.first_token()
                            self._record_tokens(live, stream, event.token_ids)
                        yield event
                    if stream.state_tokens:
                        kept = live.all_ids[: stream.state_tokens]
                        self.states.add(assignment.rank, kept, live.request.cache_salt)
                    left = self._table.has_left(assignment.rank.rank)
                    if not stream.returned and not live.may_continue(event, left=left):
                        yield self._finish(live, event)
                        return
                finally:
                    self.recalls.remove(bound)
                    in_flight.release()
                    session.end(stream, live.outcome)
                if stream.returned:
                    live.record_return(bound.avoid)
                    live.attempt_over(self._clock(), RETURNED, bound.why)
                    self._metrics.cluster.returned(assignment.rank)
                elif event.error is not None:
                    self._record_loss(live, assignment.rank, event.error, left=left)
                place.wait_again()
        except ApiError as error:
            live.outcome = error.code.name.lower()
            if not live.attempt:
                raise
            yield self._finish(live, live.failed(error))
        finally:
            timeout.cancel()
            place.leave(len(live.output_ids))
            self._end(live)

    def check_room(self, owner: str | None) -> None:
        """Raise OVERLOADED if any request of an API key would be refused now."""
        try:
            self._queue.check(owner)
        except ApiError as error:
            self._metrics.ended(error.code.name.lower(), owner)
            raise

    async def cancel(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            self._stop(live, "the request was cancelled")

    async def abort(self, name: str | None, owner: str | None = None) -> int:
        found = self._live.named(name, owner)
        for live in found:
            self._stop(live, "the request was aborted")
        return len(found)

    async def models(self) -> Sequence[ModelInfo]:
        """Return the model, with the shortest context of any worker, if one is there."""
        shortest = self._table.contexts.of_all() or self._model.max_model_len
        if shortest == self._model.max_model_len:
            return [self._model]
        return [replace(self._model, max_model_len=shortest)]

    async def server_info(self) -> Mapping[str, object]:
        active, capacity = len(self._live), self._placer.capacity()
        here = self._placer.readers.thresholds()
        return {
            **engine_settings(self._table.workers(Role.DECODE)),
            "router": {
                "router_id": self._router_id,
                "pid": os.getpid(),
                "model": self._model.model_id,
                "model_folder": self._model.root,
                "policy": self._config.policy,
                "prefill_here": PrefillHere(self._config.prefill_here).name,
                "uptime_s": self._clock() - self._started,
                "lease_ms": self._config.lease_ms,
                "active": active,
                "capacity": capacity,
                "queued": max(active - capacity, 0),
                "max_queued": self._config.max_queued,
                "waiting": self._queue.waiting,
                "waiting_tokens": self._queue.waiting_tokens,
                "max_queued_tokens": self._config.max_queued_tokens,
                "drain_tokens_per_s": round(self._queue.tokens_per_s, 1),
                "cached_prefixes": len(self.states),
            },
            **notes_info(self._table),
            "workers": [self._worker_info(w, here.get(w.worker_id)) for w in self._table.workers()],
        }

    async def health(self) -> Health:
        return self.health_now()

    def health_now(self) -> Health:
        if (ending := self._live.ending) is not None:
            return Health(False, ending.message, alive=False)
        if self._live.closing:
            return Health(False, "the router is stopping")
        missing = self._placer.missing()
        return Health(missing is None, "" if missing is None else missing.message)

    async def flush_cache(self, timeout_s: float, part: CachePart | None = None) -> None:
        salts = salts_of(part, self._config.cache_scope)
        with self.states.flushing():
            await flush_all(self._table.workers(), timeout_s, salts, self._credentials)

    def retire(self, ranks: Collection[int]) -> None:
        """Record that these decode ranks are not started again: no request waits for them."""
        self._table.retire(ranks)
        self.changed.notify()

    async def drain(self, grace_s: float) -> None:
        """Reject new requests, and wait up to `grace_s` for the running ones to end."""
        self._close(stopping())
        deadline = self._clock() + grace_s
        while self._live and (left := deadline - self._clock()) > 0:
            await self.changed.wait(left)

    async def stop(self) -> None:
        """Fail the requests that are left, and cancel them on their ranks."""
        self._close(stopping())
        await self._ranks.stop()

    async def end(self, reason: StoppedError) -> None:
        """End every request, and those that still come, with the reason why the process ends."""
        error = ApiError(reason.code, str(reason))
        self._live.end(error)
        self._close(error)

    def _close(self, error: ApiError) -> None:
        """Refuse new requests, and with `error` those that wait."""
        self._live.closing = True
        self._queue.refuse_all(error)
        self.changed.notify()

    def _stop(self, live: LiveRequest, why: str) -> None:
        live.stop(ApiError(ErrorCode.CANCELLED, why), FinishReason.ABORT)
        self.changed.notify()

    def _admit(self, request: GenerateRequest) -> tuple[LiveRequest, QueuePlace]:
        try:
            self._live.check_open()
            place = self._queue.enter(request)
            live = self._live.add(request, self._clock(), place)
        except ApiError as error:
            self._metrics.ended(error.code.name.lower(), request.owner)
            raise
        if self._tracing is not None:
            caller = None if request.record is None else request.record.trace
            live.trace = RequestTrace(self._tracing, caller, request.request_id, live.times.arrived)
        return live, place

    def _dispatch(
        self, live: LiveRequest, assignment: Assignment, session: RankSession
    ) -> AnswerStream:
        before, state_at = live.stream, assignment.state_at
        message = live.next_attempt(assignment.prefills, state_at)
        start = message.start
        start.junctions.extend(assignment.junctions)
        start.prefill_here = assignment.here
        if live.trace is not None:
            start.trace.CopyFrom(
                live.trace.placed(self._clock(), live.attempt, assignment.rank, assignment.prefills)
            )
        live.stream = session.start(message, 0 if before is None else before.scored_to)
        live.placed.append(PlacedAttempt(live.attempt, self._clock(), assignment))
        self._metrics.cluster.placed(assignment.rank, assignment.reader)
        self._metrics.cluster.readers.chosen(assignment.decision)
        if state_at is not None:
            self._metrics.state_known(state_at.tokens)
        if live.times.dispatched is None:
            live.times.dispatched = self._clock()
            self._metrics.dispatched(live.times.dispatched - live.times.arrived)
        return live.stream

    def _record_tokens(
        self, live: LiveRequest, stream: AnswerStream, token_ids: Sequence[int]
    ) -> None:
        now, times = self._clock(), live.times
        live.output_ids += token_ids
        if times.first_out is None:
            times.first_token(live.attempt, stream.first_in or now, stream.held_us, now)
        else:
            self._metrics.between_tokens(now - times.last_out, len(token_ids))
        times.last_out = now

    def _record_loss(self, live: LiveRequest, rank: Worker, error: ApiError, *, left: bool) -> None:
        """Record that a rank ended the attempt. The next one continues from the tokens so far."""
        log.warning(
            "request %s continues on another rank after %d tokens: %s",
            live.request.request_id, len(live.output_ids), error.message,
            extra={"request_id": live.request.request_id},
        )  # fmt: skip
        live.record_loss(rank, error, left=left)
        live.attempt_over(self._clock(), LEFT if left else LOST, error.message)
        if live.trace is not None:
            live.trace.left(self._clock(), error.message)
        self._metrics.cluster.replaced(rank, begun=bool(live.output_ids))

    def _finish(self, live: LiveRequest, event: Finished) -> Finished:
        timings = live.times.split(event.timings, live.attempt, self._clock())
        live.outcome = event.error.code.name.lower() if event.error else event.end.reason.value
        usage = event.usage
        if event.error is None:
            self._metrics.finished(usage, timings, live.request.owner)
        else:
            usage = altered(usage, prompt_tokens=len(live.request.prompt_ids))
        drawn = self._table.synthetic_acceptance
        finished = altered(event, usage=usage, timings=timings, synthetic_acceptance=drawn)
        live.finished = finished
        if live.request.explain:
            live.attempt_over(self._clock(), live.outcome)
            finished = altered(finished, explanation=self.explanations.of(live))
        if live.trace is not None:
            live.trace.finished(finished)
        return finished

    def _end(self, live: LiveRequest) -> None:
        self._live.remove(live)
        live.attempt_over(self._clock(), live.outcome)
        self.explanations.keep(live)
        if live.trace is not None:
            live.trace.ended(live.outcome)
        self._metrics.ended(live.outcome, live.request.owner, live.broken_off(self._clock()))
        if self._dump is not None:
            arrived, tokens = live.times.arrived, len(live.output_ids)
            self._dump.ended(live.request, arrived, tokens, live.outcome)
        if self._live.closing:
            self.changed.notify()

    def _time_out(self, live: LiveRequest) -> None:
        limit, deadline = self._config.request_timeout_s, live.request.deadline
        error = ApiError(ErrorCode.DEADLINE_EXCEEDED, f"the answer took longer than {limit:g} s")
        if deadline is not None and deadline.timeout_s < limit:
            error = deadline.passed()
        live.stop(error, FinishReason.ERROR)
        self.changed.notify()

    def _worker_info(self, worker: Worker, here: int | None) -> dict[str, object]:
        reachable = worker.role is Role.PREFILL or self._ranks.session(worker) is not None
        return worker_info(
            worker,
            ready=reachable and not worker.leaving,
            placed=self._placer.placed[worker.worker_id],
            heard_s=self._table.heard_s(worker),
            here=here,
        )

    def _on_change(self, change: Change) -> None:
        """Count and log a change of the table. `RankSessions` subscribed first."""
        worker = change.after or change.before
        if worker is None:
            return
        log.info("%s %s", worker.worker_id, change.description)
        self._metrics.cluster.workers(worker.role, self._table.count(worker.role))
        if change.before is None:
            self._metrics.cluster.joined(worker, lambda: self._placer.placed[worker.worker_id])
        elif change.after is None:
            self._metrics.cluster.gone(worker)
        self._workers_changed()

    def _workers_changed(self) -> None:
        self._placer.reach_changed()
        self._queue.call_next()
        self.changed.notify()
