"""One hand-off on its way in: from the prefill's first word to the last byte."""

import time
from dataclasses import dataclass
from typing import Protocol

from baton.decode.grants import Grants, Want
from baton.decode.prefill_link import PrefillLink
from baton.decode.quarantine import Held, Quarantine
from baton.decode.way_back import WayBack
from baton.engine.errors import RequestError
from baton.engine.prefix_cache import token_key
from baton.engine.request import Reservation
from baton.proto import common_pb2, handoff_pb2
from baton.transfer.errors import TransferError
from baton.transfer.handoff import HandoffState
from baton.transfer.hashes import prompt_hash, sampling_hash
from baton.transfer.regions import Holder
from baton.transfer.tickets import Received, Ticket, TicketTable
from baton.worker.context import WorkerContext
from baton.worker.errors import error_of, make_error


class HandoffOwner(Protocol):
    """Who asked for the hand-off: the request."""

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None: ...

    def on_scores(self, logprobs: common_pb2.PromptLogprobs) -> None: ...

    def on_complete(self, reservation: Reservation, layers_s: float) -> None:
        """Every byte is there and checked. The reservation is the owner's now; so is the last
        move, by `activated` or `fail`. layers_s: when the prefill's last layer ended, by this
        process's monotonic clock."""
        ...

    def on_failed(self, error: common_pb2.Error) -> None:
        """It is over, and owns nothing."""
        ...


@dataclass(frozen=True)
class Rank:
    """What every hand-off into this rank shares."""

    context: WorkerContext
    tickets: TicketTable
    grants: Grants
    way_back: WayBack
    quarantine: Quarantine


class IncomingHandoff:
    """Everything happens on the asyncio thread, the writes of the channel too."""

    def __init__(
        self,
        rank: Rank,
        link: PrefillLink,
        request: handoff_pb2.PrefillRequest,
        engine_id: str,
        owner: HandoffOwner,
    ) -> None:
        """engine_id: the request's name in this engine."""
        self.key = (request.request_id, request.attempt)
        self._rank = rank
        self._link = link
        self._request = request
        self._engine_id = engine_id
        self._owner = owner
        self._handoff = rank.context.handoffs.open(*self.key)
        self._origin = rank.context.worker_id
        self._reservation: Reservation | None = None
        self._ticket: Ticket | None = None
        self._done: handoff_pb2.Done | None = None
        self._layers_s = 0.0

    def begin(self) -> None:
        self._link.open(self, self._request)

    def on_message(self, message: handoff_pb2.PrefillMessage) -> None:
        match message.WhichOneof("kind"):
            case "wanted":
                self._wanted(message.wanted)
            case "first_token":
                self._first_token(message.first_token)
            case "scores":
                self._owner.on_scores(message.scores.logprobs)
            case "progress":
                self._scheduled()
            case "done":
                self._posted(message.done)
            case "failed":
                self._end(HandoffState.FAILED, message.failed.error.message)
                self._owner.on_failed(message.failed.error)

    def on_lost(self, error: common_pb2.Error) -> None:
        refused = error.code == common_pb2.INCOMPATIBLE
        self._end(HandoffState.FAILED if refused else HandoffState.EXPIRED, error.message)
        self._owner.on_failed(error)

    def cancel(self, reason: str) -> None:
        """The owner wants it no more, and is not told."""
        self._tell_prefill(reason)
        self._end(HandoffState.CANCELLED, reason)

    def fail(self, error: common_pb2.Error) -> None:
        """Something on this side is wrong. The owner is told."""
        self._tell_prefill(error.message)
        self._end(HandoffState.FAILED, error.message)
        self._owner.on_failed(error)

    def activated(self) -> None:
        """The engine runs it."""
        self._handoff.move(HandoffState.ACTIVE)
        self._rank.context.handoffs.close(self._handoff)

    def _scheduled(self) -> None:
        if self._handoff.state is HandoffState.QUEUED:
            self._handoff.move(HandoffState.SCHEDULED)

    def _wanted(self, wanted: handoff_pb2.DestinationWanted) -> None:
        self._scheduled()
        if wanted.tokens != len(self._request.prompt_ids):
            message = (
                f"the prefill wants room for {wanted.tokens} tokens; the prompt has "
                f"{len(self._request.prompt_ids)}"
            )
            self.fail(make_error(common_pb2.INTERNAL, self._origin, message))
            return
        key = token_key(self._request.prompt_ids)
        want = Want(
            self._engine_id,
            wanted.tokens,
            key,
            self._request.priority,
            self._granted,
            self._refused,
        )
        self._rank.grants.want(want)

    def _granted(self, reservation: Reservation) -> None:
        self._reservation = reservation
        ticket = self._rank.tickets.grant(
            *self.key,
            Holder(reservation.slot, reservation.pages),
            reservation.tokens,
            prompt_hash=prompt_hash(self._request.prompt_ids),
            sampling_hash=sampling_hash(self._request.sampling),
            on_received=self._received,
            on_broken=self._broken,
            kv_from=reservation.kv_from,
        )
        self._ticket = ticket
        self._handoff.move(HandoffState.RESERVED)
        destination = handoff_pb2.Destination(
            request_id=ticket.request_id,
            attempt=ticket.attempt,
            ticket_id=ticket.ticket_id,
            generation=ticket.generation,
            slot=reservation.slot,
            pages=reservation.pages,
            kv_from=ticket.kv_from,
            lease_ms=self._rank.context.config.lease_ms,
            prompt_hash=ticket.prompt_hash,
            sampling_hash=ticket.sampling_hash,
        )
        self._link.send(handoff_pb2.DecodeMessage(destination=destination))

    def _refused(self, error: RequestError) -> None:
        """The engine could never hold it."""
        self.fail(error_of(error, self._origin))

    def _first_token(self, first: handoff_pb2.FirstToken) -> None:
        self._scheduled()
        if first.HasField("finished"):
            self._end(HandoffState.COMPLETE, "ended at its first token")
        self._owner.on_first_token(first)
        if first.HasField("done"):
            self._posted(first.done)

    def _posted(self, done: handoff_pb2.Done) -> None:
        """The prefill has no more to write. What it took to say so is guessed from heartbeats."""
        self._done = done
        self._layers_s = time.monotonic() - done.tail_us / 1e6 - self._link.flight_s
        self._check_complete()

    def _received(self, ticket: Ticket) -> None:
        self._writing()
        self._check_complete()

    def _writing(self) -> None:
        if self._handoff.state is HandoffState.RESERVED:
            self._handoff.move(HandoffState.WRITING)

    def _broken(self, ticket: Ticket, error: TransferError) -> None:
        self.fail(error_of(error, self._origin))

    def _check_complete(self) -> None:
        """Done and the last byte come on two streams, in either order."""
        done, ticket = self._done, self._ticket
        if done is None or ticket is None or not self._rank.tickets.complete(ticket):
            return
        received = self._rank.tickets.received(ticket.claim)
        sent = Received(done.segments, done.bytes_state, done.bytes_kv)
        if received != sent or done.generation != ticket.generation:
            message = f"the prefill sent {sent}, and {received} arrived"
            self.fail(make_error(common_pb2.DATA_LOSS, self._origin, message, retryable=True))
            return
        self._rank.tickets.close(ticket)
        self._link.forget(self)
        self._writing()  # a channel with a thread of its own may tell of its bytes after Done
        self._handoff.move(HandoffState.COMPLETE)
        reservation, self._reservation, self._ticket = self._reservation, None, None
        assert reservation is not None
        self._rank.way_back.arrived(self._request.prompt_ids[: done.cached_state], self._link)
        self._owner.on_complete(reservation, self._layers_s)

    def _tell_prefill(self, reason: str) -> None:
        if self._handoff.state is HandoffState.COMPLETE:
            return  # it has let go already
        ticket = self._ticket
        cancel = handoff_pb2.CancelPrefill(
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            reason=reason,
            ticket_id=ticket.ticket_id if ticket else 0,
            generation=ticket.generation if ticket else 0,
        )
        self._link.send(handoff_pb2.DecodeMessage(cancel=cancel))

    def _end(self, state: HandoffState, reason: str) -> None:
        """The last move, but where the writer may write on: then it follows with the proof that
        it does not. The ticket is closed before its memory is given back."""
        self._link.forget(self)
        self._rank.grants.withdraw(self._engine_id)
        ticket, reservation = self._ticket, self._reservation
        self._ticket = self._reservation = None
        if ticket is not None:
            self._rank.tickets.close(ticket)
        if ticket is not None and reservation is not None and self._link.one_sided:
            end = HandoffState.CANCELLED if state is HandoffState.COMPLETE else state
            writer = self._link.writer
            self._rank.quarantine.hold(
                Held(writer, ticket, reservation, self._handoff, end), reason
            )
            return
        if reservation is not None:
            self._rank.grants.give_back(reservation)
        self._handoff.move(state, reason)
        self._rank.context.handoffs.close(self._handoff)
