"""The requests that have not ended, and the bound on how many there may be."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.api.backend import Finished, FinishReason, GenerateRequest, Usage
from baton.api.errors import ApiError, ErrorCode
from baton.api.wire import sampling_to_proto
from baton.proto.common_pb2 import StateAt
from baton.proto.worker_pb2 import StartRequest
from baton.router.answer_stream import AnswerStream
from baton.router.request_times import RequestTimes
from baton.router.worker_table import Worker

MOST_ATTEMPTS = 3
"""Ranks that one request is tried on: one that ends whoever runs it must not end them all."""


@dataclass(eq=False)
class LiveRequest:
    """One request, from its arrival until its client has been told how it ended.

    A rank that is lost, or leaves before the answer's end, has not lost the answer: the next
    attempt is given the tokens so far and goes on behind them. The seed is the same in all
    attempts, and sampling depends on nothing but it and the position, so the tokens are too.
    """

    request: GenerateRequest
    times: RequestTimes
    outcome: str = "cancelled"  # set at the end; stays so when the client goes away
    refusal: ApiError | None = None  # set by `stop`
    refused_as: FinishReason = FinishReason.ERROR  # set by `stop`
    stream: AnswerStream | None = None  # of the newest attempt; set when it is dispatched
    attempt: int = 0  # the newest; 0 before the first
    output_ids: list[int] = field(default_factory=list)  # given to the client, by any attempt
    loss: ApiError | None = None  # why the attempt before this one ended
    lost_on: set[int] = field(default_factory=set)  # registrations of ranks that lost it

    def __post_init__(self) -> None:
        given = self.request.sampling.seed
        self._seed = secrets.randbits(64) if given is None else given

    def stop(self, error: ApiError, reason: FinishReason) -> None:
        """End it from this side, wherever it is."""
        self.refusal, self.refused_as = error, reason
        if self.stream is not None:
            self.stream.fail(error, reason)

    @property
    def all_ids(self) -> tuple[int, ...]:
        """The prompt, and what the client has been given."""
        return (*self.request.prompt_ids, *self.output_ids)

    @property
    def unread_ids(self) -> tuple[int, ...]:
        """What the prefill worker of the next attempt is to read: the last token is its answer."""
        return self.all_ids[:-1] if self.output_ids else self.request.prompt_ids

    def next_attempt(self, prefills: Sequence[Worker], state_at: StateAt | None) -> StartRequest:
        """What the next rank is told. state_at: who has a state that it may begin with."""
        self.attempt += 1
        request = self.request
        sampling = sampling_to_proto(request.sampling, self._seed)
        if self.output_ids:  # the whole prompt was scored before the first of them
            sampling.ClearField("prompt_logprobs_start")
        return StartRequest(
            request_id=request.request_id,
            attempt=self.attempt,
            client_id=request.client_id or "",
            prompt_ids=request.prompt_ids,
            output_ids=self.output_ids,
            sampling=sampling,
            prefills=[worker.identity for worker in prefills],
            state_at=state_at,
            priority=request.priority,
        )

    def goes_on(self, event: Finished) -> bool:
        """Whether the rank is to blame for the end of its attempt, and another may do better."""
        error = event.error
        if error is None or self.refusal is not None or self.attempt >= MOST_ATTEMPTS:
            return False
        return error.retryable and error.origin != "router"

    def lost(self, rank: Worker, error: ApiError) -> None:
        """`rank` ended the newest attempt with `error`."""
        self.loss = error
        self.lost_on.add(rank.registration)

    def given_up(self, error: ApiError) -> Finished:
        """The end of a request that was lost and that nobody takes, with why; or that was
        stopped meanwhile."""
        usage = Usage(len(self.request.prompt_ids), len(self.output_ids))
        if self.refusal is None and self.loss is not None:
            error = ApiError(
                ErrorCode.UNAVAILABLE,
                f"{self.loss.message}; no other rank could go on with it: {error.message}",
                origin=self.loss.origin,
            )
        return Finished(self.refused_as, usage=usage, error=error)


class LiveRequests:
    """At most `max_queued` more than the decode ranks run at once.

    Requests do not wait here for a free slot: the ranks queue them, so that prefill runs ahead.
    """

    def __init__(self, max_queued: int, retry_after_s: float) -> None:
        self._max_queued = max_queued
        self._retry_after_s = retry_after_s
        self._live: dict[str, LiveRequest] = {}
        self.closing = False
        """Set when the router stops: nothing more is admitted."""

    def __len__(self) -> int:
        return len(self._live)

    def get(self, request_id: str) -> LiveRequest | None:
        return self._live.get(request_id)

    def named(self, name: str | None) -> list[LiveRequest]:
        """Those whose own id or client's id is `name`; all where it is None."""
        live = self._live.values()
        return [
            each
            for each in live
            if name is None or name in (each.request.request_id, each.request.client_id)
        ]

    def admit(self, request: GenerateRequest, now: float, capacity: int) -> LiveRequest:
        """Raises UNAVAILABLE when closing, OVERLOADED past the bound.

        capacity: requests that the ranks run at once, as of now.
        """
        self.check_open()
        bound = capacity + self._max_queued
        if len(self._live) >= bound:
            raise ApiError(
                ErrorCode.OVERLOADED,
                f"{len(self._live)} requests are here already; send it again later",
                expected=f"fewer than {bound}",
                actual=str(len(self._live)),
                retry_after_s=self._retry_after_s,
            )
        live = LiveRequest(request, RequestTimes(now))
        self._live[request.request_id] = live
        return live

    def check_open(self) -> None:
        """Raises UNAVAILABLE when closing."""
        if self.closing:
            raise ApiError(ErrorCode.UNAVAILABLE, "the router is stopping; ask another one")

    def remove(self, live: LiveRequest) -> None:
        del self._live[live.request.request_id]
