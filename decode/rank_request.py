"""One request on this rank: handed over by a prefill worker, then decoded here."""

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from baton.decode.incoming import IncomingHandoff, Rank
from baton.decode.prefill_link import PrefillLink
from baton.engine.errors import RequestError
from baton.engine.events import Event, Finished, Scheduled, TokenSampled
from baton.engine.request import RequestSpec, Reservation
from baton.proto import common_pb2, handoff_pb2, worker_pb2
from baton.text.grammar import CompiledGrammar
from baton.worker.convert import finished_to_proto, logprob_to_proto, sampling_from_proto
from baton.worker.errors import error_of, make_error

# Another prefill worker would say the same.
_FINAL = frozenset({common_pb2.INVALID_REQUEST, common_pb2.TOO_LARGE, common_pb2.CANCELLED})
ATTEMPT_BITS = 8
"""A hand-off's attempt number: the router's attempt, then this rank's own count in 8 bits."""


class Phase(StrEnum):
    HANDOFF = "handoff"  # a prefill has it, or soon will
    ADOPTING = "adopting"  # the engine is about to take it over
    DECODING = "decoding"
    OVER = "over"


class Links(Protocol):
    """Where a link to a prefill worker comes from."""

    def link_to(self, peer: common_pb2.WorkerIdentity) -> PrefillLink: ...


class RankRequest:
    """Everything happens on the asyncio thread.

    A request that comes with output already (it was lost elsewhere) is handed over as prompt plus
    all of that output but the last token, which is given as the first token: the state after n
    tokens, and the token that comes next, are what decoding begins from.
    """

    def __init__(
        self,
        rank: Rank,
        links: Links,
        start: worker_pb2.StartRequest,
        add: Callable[[], worker_pb2.RequestTokens],
        on_over: Callable[["RankRequest"], None],
    ) -> None:
        """add: a part of the message that goes to the router next, to be filled at once."""
        self.request_id = start.request_id
        self.attempt = start.attempt
        self.engine_id = ""  # its name in the engine: of its newest hand-off
        self._rank = rank
        self._links = links
        self._start = start
        self._add = add
        self._on_over = on_over
        self._phase = Phase.HANDOFF
        self._origin = rank.context.worker_id
        self._left = list(start.prefills)
        self._link: PrefillLink | None = None  # to the prefill worker that has it, or had
        self._handoff: IncomingHandoff | None = None
        self._handoffs = 0
        self._grammar: CompiledGrammar | None = None
        self._output = list(start.output_ids)
        self._scored_to = 0  # prompt positions below have gone out
        self._cached = 0
        self._timings = common_pb2.Timings()
        self._first_s = self._complete_s = self._launched_s = time.monotonic()
        self._layers_s = self._first_s  # when the prefill's last layer ended
        self._stepped = False  # its first decode step has ended
        self._cancelled: str | None = None

    def begin(self) -> None:
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
        """Its Finished follows: now, or with the engine's next step."""
        if self._phase is Phase.HANDOFF:
            if self._handoff is not None:
                self._handoff.cancel(reason)
            self._abort(reason)
        elif self._phase is not Phase.OVER:
            self._cancelled = reason
            self._cancel_in_engine(reason)

    def fail(self, error: common_pb2.Error) -> None:
        """The rank cannot go on with it."""
        if self._phase is Phase.OVER:
            return
        if self._handoff is not None:
            self._handoff.cancel(error.message)
        if self._phase is not Phase.HANDOFF:
            self._cancel_in_engine(error.message)
        self._fail(error)

    # What the hand-off says.

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None:
        """Relayed at once: the state's tail is still on its way."""
        self._first_s = time.monotonic()
        self._cached = first.cached_tokens
        self._timings.prefill_queue_us = first.prefill_queue_us
        self._timings.prefill_us = first.prefill_us
        tokens = self._tokens()
        ended = first.HasField("finished")
        if not ended or first.finished.usage.completion_tokens:
            tokens.token_ids.append(first.token_id)
            if first.HasField("logprob"):
                tokens.logprobs.append(first.logprob)
            self._output.append(first.token_id)
        tokens.held_us = _us(time.monotonic() - self._first_s)
        if ended:
            tokens.finished.CopyFrom(first.finished)
            self._over(tokens)

    def on_scores(self, logprobs: common_pb2.PromptLogprobs) -> None:
        """A second hand-off says what the first has said: that is dropped."""
        end = logprobs.start + len(logprobs.tokens)
        if end <= self._scored_to:
            return
        fresh = max(self._scored_to - logprobs.start, 0)
        self._scored_to = end
        tokens = self._tokens()
        tokens.prompt_logprobs.start = logprobs.start + fresh
        tokens.prompt_logprobs.tokens.extend(logprobs.tokens[fresh:])

    def on_complete(self, reservation: Reservation, layers_s: float) -> None:
        self._layers_s = layers_s
        self._complete_s = time.monotonic()
        self._timings.transfer_us = _us(self._complete_s - self._first_s)
        self._rank.context.metrics.transfer.observe(self._complete_s - self._first_s)
        self._phase = Phase.ADOPTING
        # The prefill has scored the prompt; asked again, a request that was preempted could not
        # resume from the cache.
        sampling = replace(self._sampling, prompt_logprobs_start=None)
        spec = RequestSpec(
            self.engine_id,
            tuple(self._start.prompt_ids),
            sampling,
            tuple(self._output),
            priority=self._start.priority,
        )
        self._rank.context.port.request(
            lambda engine: engine.adopt(spec, reservation, self._grammar),
            self._adopted,
            lambda error: self._not_adopted(error, reservation),
        )

    def on_failed(self, error: common_pb2.Error) -> None:
        self._handoff = None
        if error.code in _FINAL:
            self._fail(error)
        else:
            self._next_prefill(error)

    # What the engine says.

    def on_event(self, event: Event, at_s: float) -> None:
        if self._phase is Phase.OVER:
            return
        if isinstance(event, TokenSampled):  # nearly all are
            self._sampled(event, at_s)
        elif isinstance(event, Scheduled):
            self._launched(at_s)
        elif isinstance(event, Finished):
            self._finished(event)

    def _compiled(self, grammar: CompiledGrammar | None) -> None:
        if self._phase is Phase.OVER:  # it was cancelled meanwhile
            return
        self._grammar = grammar
        self._next_prefill(
            make_error(
                common_pb2.UNAVAILABLE, self._origin, "the request names no prefill worker", True
            )
        )

    def _next_prefill(self, why: common_pb2.Error) -> None:
        """The next in the router's list; `why` goes back when it is spent."""
        while self._left and (refusal := self._rank.quarantine.refusal(self._left[0])):
            del self._left[0]
            why = make_error(common_pb2.UNAVAILABLE, self._origin, refusal, retryable=True)
        if not self._left:
            self._fail(why)
            return
        self._phase = Phase.HANDOFF
        self._handoffs += 1
        attempt = (self.attempt << ATTEMPT_BITS) | (self._handoffs & 0xFF)
        self.engine_id = f"{self.request_id}.{attempt}"
        request = handoff_pb2.PrefillRequest(
            request_id=self.request_id,
            attempt=attempt,
            prompt_ids=[*self._start.prompt_ids, *self._output[:-1]],
            sampling=self._start.sampling,
            first_token=self._output[-1] if self._output else None,
            priority=self._start.priority,
        )
        request.state_at.CopyFrom(
            self._rank.way_back.state_at(request.prompt_ids, self._start.state_at)
        )
        self._link = self._links.link_to(self._left.pop(0))
        self._handoff = IncomingHandoff(self._rank, self._link, request, self.engine_id, self)
        self._handoff.begin()

    def _adopted(self, _: None) -> None:
        handoff, self._handoff = self._handoff, None
        if handoff is not None:
            handoff.activated()
        self._rank.grants.memory_freed()  # a ticket, if no memory
        if self._phase is Phase.ADOPTING:
            self._phase = Phase.DECODING

    def _not_adopted(self, error: BaseException, reservation: Reservation) -> None:
        self._rank.grants.give_back(reservation)
        if self._phase is Phase.ADOPTING and self._handoff is not None:
            self._phase = Phase.HANDOFF
            if self._cancelled is None:
                self._handoff.fail(error_of(error, self._origin))
            else:
                self.cancel(self._cancelled)

    def _launched(self, at_s: float) -> None:
        """Its first decode step is planned, and starts."""
        self._launched_s = at_s
        self._timings.decode_wait_us = _us(at_s - self._complete_s)
        self._timings.prefill_to_decode_us = _us(at_s - self._layers_s)
        metrics = self._rank.context.metrics
        metrics.decode_wait.observe(at_s - self._complete_s)
        metrics.prefill_to_decode.observe(at_s - self._layers_s)

    def _sampled(self, event: TokenSampled, at_s: float) -> None:
        if not self._stepped:
            self._stepped = True
            self._timings.first_decode_step_us = _us(at_s - self._launched_s)
            self._rank.context.metrics.first_decode_step.observe(at_s - self._launched_s)
        tokens = self._tokens()
        tokens.first_index = event.index
        tokens.token_ids.append(event.token_id)
        self._output.append(event.token_id)
        if event.logprob is not None:
            tokens.logprobs.append(logprob_to_proto(event.logprob))

    def _finished(self, event: Finished) -> None:
        finished = finished_to_proto(event, self._origin)
        finished.usage.cached_tokens = self._cached
        finished.state_tokens = event.state_tokens
        all_ids = (*self._start.prompt_ids, *self._output)
        self._rank.way_back.ended(all_ids[: event.state_tokens], self._link)
        tokens = self._tokens()
        tokens.finished.CopyFrom(finished)
        self._over(tokens)

    def _abort(self, reason: str) -> None:
        self._end(common_pb2.ABORT, make_error(common_pb2.CANCELLED, self._origin, reason))

    def _fail(self, error: common_pb2.Error) -> None:
        self._end(common_pb2.ERROR, error)

    def _end(self, reason: common_pb2.FinishReason, error: common_pb2.Error) -> None:
        tokens = self._tokens()
        tokens.finished.reason = reason
        tokens.finished.error.CopyFrom(error)
        tokens.finished.usage.prompt_tokens = len(self._start.prompt_ids)
        tokens.finished.usage.completion_tokens = len(self._output)
        tokens.finished.usage.cached_tokens = self._cached
        self._over(tokens)

    def _over(self, last: worker_pb2.RequestTokens) -> None:
        self._phase = Phase.OVER
        self._handoff = None
        last.finished.timings.CopyFrom(self._timings)
        reason = common_pb2.FinishReason.Name(last.finished.reason)
        self._rank.context.metrics.count_request(reason.lower())
        self._on_over(self)

    def _cancel_in_engine(self, reason: str) -> None:
        engine_id = self.engine_id
        self._rank.context.port.post(lambda engine: engine.cancel(engine_id, reason), "cancel")

    def _tokens(self) -> worker_pb2.RequestTokens:
        """Nothing yet, from the next output index on; on its way to the router."""
        tokens = self._add()
        tokens.request_id = self.request_id
        tokens.attempt = self.attempt
        tokens.first_index = len(self._output)
        return tokens


def _us(seconds: float) -> int:
    return round(max(0.0, seconds) * 1e6)
