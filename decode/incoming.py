"""One hand-off on the decode rank: from its request to the prefill worker, to the last byte."""

import time
from dataclasses import dataclass
from typing import Protocol

from baton.core.error_codes import ErrorCode
from baton.core.errors import RequestError
from baton.decode.grants import GrantRequest
from baton.decode.prefill_link import PrefillLink
from baton.decode.quarantine import Held
from baton.decode.rank_resources import RankResources
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.layout.token_key import token_key
from baton.engine.request.request import Reservation
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import (
    handoff_from_proto,
    handoff_to_proto,
    ticket_from_proto,
    ticket_to_proto,
)
from baton.rpc.errors import error_of, make_error
from baton.transfer.errors import TransferError
from baton.transfer.handoff import HandoffState
from baton.transfer.hashes import prompt_hash, sampling_hash
from baton.transfer.tickets import Received, Ticket


class HandoffOwner(Protocol):
    """The request that a hand-off is for."""

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None: ...

    def on_scores(self, logprobs: common_pb2.PromptLogprobs) -> None: ...

    def on_complete(self, reservation: Reservation, layers_ended_s: float) -> None:
        """Take the reservation, whose memory has every byte, checked.

        The owner now makes the hand-off's last move, by `activated`, `cancel` or `fail`.
        layers_ended_s: when the prefill's last layer was computed, by this process's
        `time.monotonic`.
        """
        ...

    def on_failed(self, error: common_pb2.Error) -> None:
        """Go on without the hand-off: it has ended and owns nothing."""
        ...


@dataclass(frozen=True)
class _Destination:
    """The memory that the prefill worker may write into."""

    ticket: Ticket
    reservation: Reservation


@dataclass(frozen=True)
class _AllPosted:
    """The prefill worker's word that it has nothing more to write."""

    done: handoff_pb2.Done
    layers_ended_s: float  # by this process's `time.monotonic`


class IncomingHandoff:
    """The rank's side of one hand-off.

    Every method is called on the asyncio thread, also those that the channel calls.
    """

    def __init__(
        self,
        rank: RankResources,
        link: PrefillLink,
        request: handoff_pb2.PrefillRequest,
        engine_id: str,
        owner: HandoffOwner,
    ) -> None:
        """engine_id: the request's name in this engine."""
        self.name = handoff_from_proto(request)
        self._rank = rank
        self._link = link
        self._request = request
        self._engine_id = engine_id
        self._owner = owner
        self._handoff = rank.context.handoffs.open(self.name)
        self._origin = rank.context.worker_id
        self._destination: _Destination | None = None
        self._posted: _AllPosted | None = None

    @property
    def state(self) -> HandoffState:
        return self._handoff.state

    def begin(self) -> None:
        """Send the request to the prefill worker."""
        self._link.open(self.name, self._request, self._on_message, self._on_lost)

    def cancel(self, reason: str) -> None:
        """End the hand-off because its owner no longer wants it. The owner is not told."""
        self._tell_prefill(reason)
        self._end(HandoffState.CANCELLED, reason)

    def fail(self, error: common_pb2.Error) -> None:
        """End the hand-off because of a fault on this side. The owner is told."""
        self._tell_prefill(error.message)
        self._end(HandoffState.FAILED, error.message)
        self._owner.on_failed(error)

    def activated(self) -> None:
        """Make the last move of a hand-off that the engine has taken over."""
        self._handoff.move(HandoffState.ACTIVE)
        self._rank.context.handoffs.close(self._handoff)

    def _on_message(self, message: handoff_pb2.PrefillMessage) -> None:
        match message.WhichOneof("kind"):
            case "wanted":
                self._on_wanted(message.wanted)
            case "first_token":
                self._on_first_token(message.first_token)
            case "scores":
                self._owner.on_scores(message.scores.logprobs)
            case "progress":
                self._scheduled()
            case "done":
                self._on_done(message.done)
            case "failed":
                self._end(HandoffState.FAILED, message.failed.error.message)
                self._owner.on_failed(message.failed.error)

    def _on_lost(self, error: common_pb2.Error) -> None:
        refused = error.code == common_pb2.INCOMPATIBLE
        self._end(HandoffState.FAILED if refused else HandoffState.EXPIRED, error.message)
        self._owner.on_failed(error)

    def _scheduled(self) -> None:
        if self._handoff.state is HandoffState.QUEUED:
            self._handoff.move(HandoffState.SCHEDULED)

    def _on_wanted(self, wanted: handoff_pb2.DestinationWanted) -> None:
        """Ask this rank's engine for memory."""
        self._scheduled()
        prompt_tokens = len(self._request.prompt_ids)
        if wanted.tokens != prompt_tokens:
            message = (
                f"the prefill wants room for {wanted.tokens} tokens; the prompt has {prompt_tokens}"
            )
            self.fail(make_error(ErrorCode.INTERNAL, self._origin, message))
            return
        asked = GrantRequest(
            self._engine_id,
            wanted.tokens,
            token_key(self._request.prompt_ids),
            self._request.cache_salt,
            self._request.priority,
            self._on_granted,
            self._on_refused,
        )
        self._rank.grants.ask(asked)

    def _on_granted(self, reservation: Reservation) -> None:
        """Issue a ticket for the memory and send it to the prefill worker."""
        ticket = self._rank.tickets.grant(
            self.name,
            reservation.state,
            prompt_hash=prompt_hash(self._request.prompt_ids, self._request.cache_salt),
            sampling_hash=sampling_hash(self._request.sampling),
            on_received=self._on_received,
            on_broken=self._on_broken,
        )
        self._destination = _Destination(ticket, reservation)
        self._handoff.move(HandoffState.RESERVED)
        destination = handoff_pb2.Destination(
            **handoff_to_proto(self.name),
            **ticket_to_proto(ticket.name),
            slot=reservation.state.slot,
            pages=reservation.state.pages,
            kv_from=reservation.state.kv_from,
            prompt_hash=ticket.claim.prompt_hash,
            sampling_hash=ticket.claim.sampling_hash,
        )
        self._link.send(handoff_pb2.DecodeMessage(destination=destination))

    def _on_refused(self, error: RequestError) -> None:
        """Fail: the engine could not hold the request even alone."""
        self.fail(error_of(error, self._origin))

    def _on_first_token(self, first: handoff_pb2.FirstToken) -> None:
        self._scheduled()
        if first.HasField("finished"):
            self._end(HandoffState.COMPLETE, "ended at its first token")
        self._owner.on_first_token(first)
        if first.HasField("done"):
            self._on_done(first.done)

    def _on_done(self, done: handoff_pb2.Done) -> None:
        """Note that the prefill worker has posted everything.

        The message's own travel time is estimated from heartbeats.
        """
        layers_ended_s = time.monotonic() - done.tail_us / 1e6 - self._link.one_way_s
        self._posted = _AllPosted(done, layers_ended_s)
        self._check_complete()

    def _on_received(self, ticket: Ticket) -> None:
        self._writing()
        self._check_complete()

    def _writing(self) -> None:
        if self._handoff.state is HandoffState.RESERVED:
            self._handoff.move(HandoffState.WRITING)

    def _on_broken(self, ticket: Ticket, error: TransferError) -> None:
        self.fail(error_of(error, self._origin))

    def _check_complete(self) -> None:
        """Complete the hand-off once both Done and the last byte are here, in either order."""
        posted, destination = self._posted, self._destination
        if posted is None or destination is None:
            return
        ticket, done = destination.ticket, posted.done
        if not self._rank.tickets.complete(ticket):
            return
        received = self._rank.tickets.received(ticket.claim)
        sent = Received(done.segments, done.bytes_state, done.bytes_kv)
        if received != sent or ticket_from_proto(done) != ticket.name:
            message = (
                f"the prefill sent {sent} of generation {done.generation}; {received} of "
                f"generation {ticket.name.generation} arrived"
            )
            self.fail(make_error(ErrorCode.DATA_LOSS, self._origin, message))
            return
        self._complete(destination, posted)

    def _complete(self, destination: _Destination, posted: _AllPosted) -> None:
        """Hand the memory over to the owner."""
        self._rank.tickets.close(destination.ticket)
        self._link.arrived(destination.ticket)
        self._link.forget(self.name)
        self._writing()  # a channel with a thread of its own may report its bytes after Done
        self._handoff.move(HandoffState.COMPLETE)
        self._destination = None
        cached_ids = tuple(self._request.prompt_ids[: posted.done.cached_state])
        cached = SaltedPrefix(cached_ids, self._request.cache_salt)
        self._rank.state_returner.arrived(cached, self._link)
        self._owner.on_complete(destination.reservation, posted.layers_ended_s)

    def _tell_prefill(self, reason: str) -> None:
        if self._handoff.state is HandoffState.COMPLETE:
            return  # the prefill worker has let go of the request already
        ticket = self._destination.ticket.name if self._destination else None
        cancel = handoff_pb2.CancelPrefill(
            **handoff_to_proto(self.name), **ticket_to_proto(ticket), reason=reason
        )
        self._link.send(handoff_pb2.DecodeMessage(cancel=cancel))

    def _end(self, state: HandoffState, reason: str) -> None:
        """Close the ticket, give its memory back, and make the last move.

        Where the prefill worker may still write into that memory, memory and last move wait in
        quarantine for the proof that it does not.
        """
        self._link.forget(self.name)
        self._rank.grants.withdraw(self._engine_id)
        destination, self._destination = self._destination, None
        if destination is not None:
            self._rank.tickets.close(destination.ticket)
            if self._link.one_sided:
                self._quarantine(destination, state, reason)
                return
            self._rank.grants.give_back(destination.reservation)
        self._handoff.move(state, reason)
        self._rank.context.handoffs.close(self._handoff)

    def _quarantine(self, destination: _Destination, state: HandoffState, reason: str) -> None:
        end = HandoffState.CANCELLED if state is HandoffState.COMPLETE else state
        held = Held(
            self._link.writer, destination.ticket, destination.reservation, self._handoff, end
        )
        self._rank.quarantine.hold(held, reason)
