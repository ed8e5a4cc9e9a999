"""The attempts to have one request prefilled, each with the next prefill worker."""

from collections.abc import Callable, Sequence

from baton.core.error_codes import ErrorCode
from baton.decode.incoming import HandoffOwner, IncomingHandoff
from baton.decode.prefill_link import PrefillLink
from baton.decode.rank_resources import RankResources
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.proto import common_pb2, handoff_pb2, worker_pb2
from baton.rpc.errors import make_error
from baton.transfer.handoff import HandoffState

ATTEMPT_BITS = 8
"""A hand-off's attempt number: the router's attempt, then this rank's own count in 8 bits."""

LinkTo = Callable[[common_pb2.WorkerIdentity], PrefillLink]
"""Returns the link to a prefill worker, and makes it if there is none."""


class PrefillAttempts:
    """The router's list of prefill workers, and the hand-off under way with one of them."""

    def __init__(
        self,
        rank: RankResources,
        link_to: LinkTo,
        start: worker_pb2.StartRequest,
        owner: HandoffOwner,
    ) -> None:
        self.engine_id = ""  # the request's name in this engine; each attempt has another
        self.link: PrefillLink | None = None  # of the newest attempt
        self._rank = rank
        self._link_to = link_to
        self._start = start
        self._owner = owner
        self._left = list(start.prefills)
        self._begun = 0
        self._handoff: IncomingHandoff | None = None

    def begin_next(
        self, output_ids: Sequence[int], why: common_pb2.Error
    ) -> common_pb2.Error | None:
        """Begin a hand-off with the next prefill worker and return None.

        output_ids: the answer so far. why: returned if no prefill worker is left, unless the last
        ones were left out because they keep too much memory in quarantine: then that is the error.
        """
        while self._left and (refusal := self._rank.quarantine.refusal(self._left[0])):
            del self._left[0]
            origin = self._rank.context.worker_id
            why = make_error(ErrorCode.UNAVAILABLE, origin, refusal)
        if not self._left:
            return why
        self._begun += 1
        attempt = (self._start.attempt << ATTEMPT_BITS) | (self._begun & 0xFF)
        self.engine_id = f"{self._start.request_id}.{attempt}"
        self.link = self._link_to(self._left.pop(0))
        request = self._request(attempt, output_ids)
        self._handoff = IncomingHandoff(self._rank, self.link, request, self.engine_id, self._owner)
        self._handoff.begin()
        return None

    def begin_here(self) -> str:
        """Return the request's name in this engine where the rank computes the prompt itself."""
        self.engine_id = f"{self._start.request_id}.{self._start.attempt << ATTEMPT_BITS}"
        return self.engine_id

    @property
    def state(self) -> HandoffState | None:
        """Return the state of the hand-off under way; None: there is none."""
        return None if self._handoff is None else self._handoff.state

    def activated(self) -> None:
        """End the hand-off: the engine has taken the request over."""
        if (handoff := self._take()) is not None:
            handoff.activated()

    def cancel(self, reason: str) -> None:
        """End the hand-off without telling its owner."""
        if (handoff := self._take()) is not None:
            handoff.cancel(reason)

    def fail(self, error: common_pb2.Error) -> None:
        """End the hand-off for a fault on this side. Its owner is told by `on_failed`."""
        if (handoff := self._take()) is not None:
            handoff.fail(error)

    def forget(self) -> None:
        """Drop the hand-off, which has ended by itself."""
        self._handoff = None

    def _take(self) -> IncomingHandoff | None:
        handoff, self._handoff = self._handoff, None
        return handoff

    def _request(self, attempt: int, output_ids: Sequence[int]) -> handoff_pb2.PrefillRequest:
        """Build the request to the prefill worker.

        Decoding begins from the state after n tokens and from the token that comes next. So a
        request that has output already is handed over as its prompt plus all output but the last
        token, and that token is given as the first token.
        """
        start = self._start
        request = handoff_pb2.PrefillRequest(
            request_id=start.request_id,
            attempt=attempt,
            prompt_ids=[*start.prompt_ids, *output_ids[:-1]],
            sampling=start.sampling,
            first_token=output_ids[-1] if output_ids else None,
            priority=start.priority,
            cache_salt=start.cache_salt,
            junctions=start.junctions,
            trace=start.trace if start.HasField("trace") else None,
        )
        prompt = SaltedPrefix(tuple(request.prompt_ids), request.cache_salt)
        state_at = self._rank.state_returner.state_at(prompt, start.state_at)
        request.state_at.CopyFrom(state_at)
        return request
