"""One request on this rank: handed over by a prefill worker, then decoded here."""

import logging
from collections.abc import Callable
from dataclasses import replace

from baton.core.error_codes import ErrorCode
from baton.core.errors import RequestError, StoppedError
from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.decode.answer import Answer, Outgoing
from baton.decode.prefill_attempts import LinkTo, PrefillAttempts
from baton.decode.rank_resources import RankResources
from baton.decode.request_phase import ALLOWED, Phase
from baton.decode.request_timings import RequestTimings
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.request.events import (
    Event,
    PromptScored,
    RequestFinished,
    Scheduled,
    TokenSampled,
)
from baton.engine.request.request import RequestSpec, Reservation
from baton.proto import common_pb2, handoff_pb2, worker_pb2
from baton.rpc.convert import finished_to_proto, prompt_logprobs_to_proto, sampling_from_proto
from baton.rpc.errors import error_from_proto, error_of, make_error
from baton.text.grammar import CompiledGrammar
from baton.transfer.handoff import HandoffState
from baton.transfer.state_machine import StateMachine
from baton.worker.caller_span import CallerSpan
from baton.worker.convert import finished_of

log = logging.getLogger(__name__)

RECALLED = "the router recalled it"


class RankRequest:
    """Joins one request's hand-offs, its run in the engine and its answer.

    Every method is called on the asyncio thread.
    """

    def __init__(
        self,
        rank: RankResources,
        link_to: LinkTo,
        start: worker_pb2.StartRequest,
        outgoing: Outgoing,
        on_over: Callable[["RankRequest"], None],
    ) -> None:
        """on_over: called once, when the last part of the answer has been added."""
        self.request_id = start.request_id
        self.attempt = start.attempt
        self._rank = rank
        self._start = start
        self._on_over = on_over
        self._origin = rank.context.worker_id
        name = f"request {start.request_id}/{start.attempt}"
        self._phase = StateMachine(name, ALLOWED, Phase.PREPARING)
        trace = CallerSpan.of(rank.context, start.trace, start.request_id)
        self._timings = RequestTimings(rank.context.metrics, trace)
        self._answer = Answer(start, outgoing, self._timings)
        self._attempts = PrefillAttempts(rank, link_to, start, self)
        self._grammar: CompiledGrammar | None = None
        self._returning = False  # the router is told at the end that it may go on elsewhere

    @property
    def engine_id(self) -> str:
        """The request's name in this engine: that of its newest hand-off."""
        return self._attempts.engine_id

    @property
    def phase(self) -> Phase:
        return self._phase.state

    def begin(self) -> None:
        """Check the parameters, compile the grammar, and ask the first prefill worker."""
        try:
            self._sampling = sampling_from_proto(self._start.sampling)
        except RequestError as error:
            self._fail(error_of(error, self._origin))
            return
        self._rank.context.grammars.compile(
            self._sampling.grammar,
            self._compiled,
            lambda error: self.fail(error_of(error, self._origin)),
        )

    def cancel(self, reason: str) -> None:
        """End the request. The answer's end follows at once, or with the engine's next step."""
        match self.phase:
            case Phase.PREPARING | Phase.HANDOFF:
                self._attempts.cancel(reason)
                self._abort(reason)
            case Phase.ADOPTING | Phase.DECODING:
                self._phase.move(Phase.CANCELLING, reason)
                self._cancel_in_engine(reason)

    def recall(self, *, computed: bool) -> bool:
        """Give the request back to the router if no chunk of its prompt is scheduled.

        computed: also if all of its prompt is computed, and it waits for this rank's memory, or for
        a place in a step. Return False if it stays; else the router is told once it has gone.
        """
        match self.phase:
            case Phase.PREPARING:
                self._give_back()
            case Phase.HANDOFF if self._may_return(computed):
                self._attempts.cancel(RECALLED)
                self._give_back()
            case Phase.DECODING if computed and not self._timings.launched:
                self._returning = True
                self._phase.move(Phase.CANCELLING, RECALLED)
                self._cancel_in_engine(RECALLED)
            case Phase.CANCELLING if self._returning:
                pass  # it was asked for twice
            case _:
                return False
        return True

    def fail(self, error: common_pb2.Error) -> None:
        """End the request at once: the rank cannot go on with it."""
        if self.phase is Phase.OVER:
            return
        self._attempts.cancel(error.message)
        if self.phase not in (Phase.PREPARING, Phase.HANDOFF):
            self._cancel_in_engine(error.message)
        self._fail(error)

    # Calls of the hand-off.

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None:
        """Relay the token at once: the last bytes of the state are still under way."""
        self._answer.add_first_token(first)
        if first.HasField("finished"):
            self._over(first.finished.reason)

    def on_scores(self, logprobs: common_pb2.PromptLogprobs) -> None:
        self._answer.add_scores(logprobs)

    def on_complete(self, reservation: Reservation, layers_ended_s: float) -> None:
        """Have the engine take over what was handed over."""
        self._timings.on_complete(layers_ended_s)
        self._answer.received(reservation.state.kv_from)
        self._phase.move(Phase.ADOPTING)
        # The prefill worker has scored the prompt. If the engine were asked to score it as well, a
        # preempted request could not resume from the cache.
        sampling = replace(self._sampling, prompt_logprobs_start=None)
        spec = self._spec(self.engine_id, sampling)
        self._rank.context.port.request(
            lambda engine: engine.adopt(spec, reservation, self._grammar),
            self._adopted,
            lambda error: self._not_adopted(error, reservation),
        )

    def on_failed(self, error: common_pb2.Error) -> None:
        self._attempts.forget()
        self._answer.not_read(error.message)
        if error_from_proto(error).replaceable:
            self._next_prefill(error)
        else:  # another prefill worker would say the same
            self._fail(error)

    # Calls of the engine.

    def on_event(self, event: Event, at_s: float) -> None:
        if self._phase.state is Phase.OVER:
            return
        if type(event) is TokenSampled:  # nearly all are
            if not self._timings.first_step_ended:
                self._timings.on_first_step_ended(at_s)
            self._answer.add_sampled(event)
        elif isinstance(event, Scheduled):
            self._timings.on_launched(at_s)
            if self._start.prefill_here and self._attempts.link is None:
                self._answer.cached(
                    event.cached_tokens, event.cached_kv, event.cached_host, event.cached_file
                )
        elif isinstance(event, PromptScored):
            self._answer.add_scores(prompt_logprobs_to_proto(event.scores))
        elif isinstance(event, RequestFinished):
            self._finished(event)

    def _compiled(self, grammar: CompiledGrammar | None) -> None:
        if self.phase is Phase.OVER:  # it was cancelled meanwhile
            return
        self._grammar = grammar
        self._phase.move(Phase.HANDOFF)
        if self._start.prefill_here:
            self._prefill_here()
            return
        message = "the request names no prefill worker"
        self._next_prefill(make_error(ErrorCode.UNAVAILABLE, self._origin, message))

    def _prefill_here(self) -> None:
        """Have the engine compute the prompt and go on from there."""
        self._phase.move(Phase.ADOPTING)
        self._timings.prefill_here()
        self._answer.read_by(self._origin)
        spec = self._spec(self._attempts.begin_here(), self._sampling)
        self._rank.context.port.request(
            lambda engine: engine.submit(spec, self._grammar), self._adopted, self._not_adopted
        )

    def _spec(self, engine_id: str, sampling: SamplingParams) -> RequestSpec:
        return RequestSpec(
            engine_id,
            tuple(self._start.prompt_ids),
            sampling,
            tuple(self._answer.token_ids),
            priority=self._start.priority,
            cache_salt=self._start.cache_salt,
            junctions=tuple(self._start.junctions),
            prediction_ids=tuple(self._start.prediction_ids),
            draft_scope=self._start.draft_scope,
        )

    def _next_prefill(self, why: common_pb2.Error) -> None:
        """Ask the next prefill worker; fail with `why` if none is left."""
        error = self._attempts.begin_next(self._answer.token_ids, why)
        if error is not None:
            self._fail(error)
        elif self._attempts.link is not None and self.phase is not Phase.OVER:
            self._answer.read_by(self._attempts.link.peer.worker_id)

    def _adopted(self, _: None) -> None:
        self._attempts.activated()
        self._rank.grants.memory_freed()  # the engine has freed a ticket's share
        if self.phase is Phase.ADOPTING:
            self._phase.move(Phase.DECODING)

    def _not_adopted(self, error: BaseException, reservation: Reservation | None = None) -> None:
        """Go on elsewhere: the engine has refused what was handed over, or the prompt."""
        if isinstance(error, StoppedError):
            return  # the engine has ended: `fail` follows once the routers have heard
        if reservation is not None:
            self._rank.grants.give_back(reservation)
        match self.phase:
            case Phase.ADOPTING:
                self._phase.move(Phase.HANDOFF)
                if reservation is None:
                    self._answer.not_read(str(error))
                    self._next_prefill(error_of(error, self._origin))
                else:
                    self._attempts.fail(error_of(error, self._origin))
            case Phase.CANCELLING:
                self._attempts.cancel(self._phase.reason)
                self._abort(self._phase.reason)

    def _may_return(self, computed: bool) -> bool:
        """Return True if a request of the phase HANDOFF has no ticket, and either no chunk that is
        scheduled, or all of them `computed`.
        """
        state = self._attempts.state
        waits_for_memory = state is HandoffState.SCHEDULED and self._answer.began
        return state is HandoffState.QUEUED or (computed and waits_for_memory)

    def _finished(self, event: RequestFinished) -> None:
        if self._returning and event.end.reason is FinishReason.ABORT:
            self._give_back()
            return
        finished = finished_to_proto(finished_of(event, self._origin))
        finished.state_tokens = event.state_tokens
        all_ids = (*self._start.prompt_ids, *self._answer.token_ids)
        kept = SaltedPrefix(all_ids[: event.state_tokens], self._start.cache_salt)
        self._rank.state_returner.ended(kept, self._attempts.link)
        self._answer.end(finished)
        self._over(finished.reason)

    def _abort(self, reason: str) -> None:
        error = make_error(ErrorCode.CANCELLED, self._origin, reason)
        self._answer.end_early(common_pb2.ABORT, error)
        self._over(common_pb2.ABORT)

    def _fail(self, error: common_pb2.Error) -> None:
        self._answer.end_early(common_pb2.ERROR, error)
        self._over(common_pb2.ERROR)

    def _give_back(self) -> None:
        self._answer.give_back()
        self._gone("returned")

    def _over(self, reason: common_pb2.FinishReason) -> None:
        self._gone(common_pb2.FinishReason.Name(reason).lower())

    def _gone(self, reason: str) -> None:
        self._phase.move(Phase.OVER)
        self._attempts.forget()
        self._rank.context.metrics.count_request(reason)
        log.info(
            "answer ended here",
            extra={
                "request_id": self.request_id,
                "attempt": self.attempt,
                "reason": reason,
                "output_tokens": len(self._answer.token_ids),
            },
        )
        self._on_over(self)

    def _cancel_in_engine(self, reason: str) -> None:
        engine_id = self.engine_id
        self._rank.context.port.post(
            lambda engine: engine.cancel(engine_id, reason), f"cancel of {engine_id}"
        )
