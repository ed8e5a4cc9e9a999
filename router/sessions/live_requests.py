"""The requests that have not ended."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from baton.api.admission.admission_queue import QueuePlace
from baton.api.backend import GenerateRequest
from baton.core.error_codes import ErrorCode
from baton.core.errors import ROUTER, ApiError, StoppingError
from baton.core.finish import End, Finished, FinishReason, Usage
from baton.proto.common_pb2 import StateAt
from baton.proto.worker_pb2 import RouterMessage, StartRequest
from baton.router.cluster_view.worker_table import Worker
from baton.router.request_times import BrokenOff, RequestTimes
from baton.router.request_trace import RequestTrace
from baton.router.sessions.answer_stream import AnswerStream
from baton.router.sessions.request_history import PlacedAttempt, RequestHistory
from baton.rpc.convert import sampling_to_proto
from baton.text.prefix_digest import PromptPrefixes

MAX_ATTEMPTS = 3
"""Ranks that one request is tried on. A request that crashes its rank must not crash them all."""


@dataclass(eq=False)
class LiveRequest:
    """One request, from its arrival until its client has been told how it ended.

    If a rank is lost or leaves before the answer's end, the next attempt is given the tokens
    so far and continues from them. All attempts use one seed, and sampling depends on the
    seed and the position only, so the continued answer has the tokens that it would have had.
    """

    request: GenerateRequest
    times: RequestTimes
    place: QueuePlace | None = None  # in the queue; set when it is admitted
    outcome: str = "cancelled"  # set at the end; stays so when the client goes away
    stop_error: ApiError | None = None  # set by `stop`
    stop_reason: FinishReason = FinishReason.ERROR  # set by `stop`
    stream: AnswerStream | None = None  # of the newest attempt; set when it is dispatched
    attempt: int = 0  # the newest; 0 before the first
    output_ids: list[int] = field(default_factory=list)  # given to the client, by any attempt
    excused: int = 0  # attempts whose rank left: a restart of all ranks is no fault of a request
    returns: int = 0  # attempts that their rank gave back, as it was asked
    avoid: str = ""  # the prefill worker that the newest of those was taken from
    loss: ApiError | None = None  # why the attempt before this one ended
    lost_on: set[int] = field(default_factory=set)  # registrations of ranks that lost it
    trace: RequestTrace | None = None  # None: no traces are sent
    placed: list[PlacedAttempt] = field(default_factory=list)  # all attempts, in order
    finished: Finished | None = None  # set when the client is told how it ended

    def __post_init__(self) -> None:
        self._sampling = self.request.sampling.seeded()

    def stop(self, error: ApiError, reason: FinishReason) -> None:
        """End the request with `error`, wherever it is."""
        self.stop_error, self.stop_reason = error, reason
        if self.place is not None:
            self.place.refuse(error)
        if self.stream is not None:
            self.stream.fail(error, reason)

    @cached_property
    def _prompt(self) -> PromptPrefixes:
        return PromptPrefixes(self.request.prompt_ids, self.request.cache_salt)

    @property
    def all_ids(self) -> "array[int]":
        """Return the prompt and the tokens that the client has been given, of type I."""
        return self._prompt.token_ids + array("I", self.output_ids)

    @property
    def prefixes(self) -> PromptPrefixes:
        """Return the tokens that the next attempt's prefill reads: all but the last output
        token.
        """
        if not self.output_ids:
            return self._prompt
        return PromptPrefixes(self.all_ids[:-1], self.request.cache_salt)

    def next_attempt(self, prefills: Sequence[Worker], state_at: StateAt | None) -> RouterMessage:
        """Return the message that starts the next attempt.

        state_at: the rank with a cached state that the prefill can begin with.
        """
        self.attempt += 1
        request = self.request
        sampling = sampling_to_proto(self._sampling)
        if self.output_ids:  # the whole prompt was scored before the first output token
            sampling.ClearField("prompt_logprobs_start")
        start = StartRequest(
            request_id=request.request_id,
            attempt=self.attempt,
            client_id=request.client_id or "",
            sampling=sampling,
            prefills=[worker.identity for worker in prefills],
            state_at=state_at,
            priority=request.priority + (0 if self.place is None else self.place.boost),
            cache_salt=request.cache_salt,
            prediction_ids=request.prediction_ids,
            draft_scope=request.draft_scope,
        )
        message = RouterMessage(start=start)  # copied: 12,000 tokens of a prompt would take 170 us
        message.start.prompt_ids.extend(request.prompt_ids)
        message.start.output_ids.extend(self.output_ids)
        return message

    def attempt_over(self, now_s: float, end: str, why: str = "") -> None:
        """Note how the newest attempt ended, unless it has ended. now_s: on the router's clock."""
        for attempt in self.placed[-1:]:
            attempt.over(now_s, end, why)

    def history(self, *, over: bool) -> RequestHistory:
        """Return what has become of the request so far, without its text."""
        request, finished = self.request, self.finished
        return RequestHistory(
            request.request_id,
            request.client_id,
            None if request.record is None else request.record.request_id,
            request.owner,
            self._prompt,
            self.times.arrived,
            tuple(self.placed),
            self.outcome if over else "",
            len(self.output_ids),
            None if finished is None else finished.timings,
            None if self.stream is None else self.stream.source,
        )

    def may_continue(self, event: Finished, *, left: bool) -> bool:
        """Return True if the rank caused the attempt's end and another rank can continue.

        left: the rank leaves, or has left.
        """
        error = event.error
        if error is None or self.stop_error is not None:
            return False
        if not left and self.attempt - self.excused - self.returns >= MAX_ATTEMPTS:
            return False
        return error.replaceable and error.origin != ROUTER

    def record_loss(self, rank: Worker, error: ApiError, *, left: bool) -> None:
        """Record that `rank` ended the newest attempt with `error`. left: as in `may_continue`."""
        self.loss = error
        self.excused += left
        self.lost_on.add(rank.registration)

    def record_return(self, avoid: str) -> None:
        """Record that the rank gave the newest attempt back. avoid: a prefill worker, or ""."""
        self.returns += 1
        self.avoid = avoid

    def broken_off(self, now_s: float) -> BrokenOff | None:
        """Return what there was of a request whose rank did not finish it; None if one did.

        now_s: on the router's clock.
        """
        if self.finished is not None and self.finished.error is None:
            return None
        times, written = self.times, len(self.output_ids)
        first = times.first_out
        return BrokenOff(
            Usage(len(self.request.prompt_ids) if written else 0, written),
            None if first is None else first - times.arrived,
            now_s - times.arrived,
        )

    def failed(self, error: ApiError) -> Finished:
        """Return the end of a request that was stopped, or that no rank could continue.

        error: why the next attempt could not start.
        """
        usage = Usage(len(self.request.prompt_ids), len(self.output_ids))
        if self.stop_error is None and self.loss is not None:
            error = ApiError(
                ErrorCode.UNAVAILABLE,
                f"{self.loss.message}; no other rank could continue it: {error.message}",
                origin=self.loss.origin,
            )
        return Finished(End(self.stop_reason), usage=usage, error=error)


class LiveRequests:
    """The live requests by id."""

    def __init__(self) -> None:
        self._live: dict[str, LiveRequest] = {}
        self.closing = False
        """Set when the router stops: nothing more is admitted."""
        self.ending: ApiError | None = None  # why the process ends; set by `end`

    def __len__(self) -> int:
        return len(self._live)

    def get(self, request_id: str) -> LiveRequest | None:
        return self._live.get(request_id)

    def named(self, name: str | None, owner: str | None = None) -> list[LiveRequest]:
        """Return the requests of `owner` that `name` means; of everybody if `owner` is None."""
        return [each for each in self._live.values() if each.request.is_meant(name, owner)]

    def add(self, request: GenerateRequest, now: float, place: QueuePlace) -> LiveRequest:
        live = LiveRequest(request, RequestTimes(now), place)
        self._live[request.request_id] = live
        return live

    def end(self, error: ApiError) -> None:
        """Stop all requests, and refuse those to come, with the reason why the process ends."""
        self.ending = error
        for live in list(self._live.values()):
            live.stop(error, FinishReason.ERROR)

    def check_open(self) -> None:
        """Raise UNAVAILABLE when closing."""
        if self.ending is not None:
            raise self.ending
        if self.closing:
            raise stopping()

    def remove(self, live: LiveRequest) -> None:
        del self._live[live.request.request_id]


def stopping() -> StoppingError:
    """Return the error of a request that a stopping router does not begin."""
    return StoppingError("the router is stopping; ask another one")
