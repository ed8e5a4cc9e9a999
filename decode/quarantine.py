"""Memory of hand-offs that are over, whose writer is not proved quiet.

One proof of three ends it: the writer's word that nothing of it is under way (`Drained`); the death
of that process, by the kernel's word; or, where the writer needs this side to write, the teardown
of its connection. A missed heartbeat proves nothing: a process that was stopped goes on where it
was, in the middle of a copy (seen with UCX's kernel copies, after its peer's agent was destroyed).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.handoff_ids import TicketId
from baton.decode.grants import Grants
from baton.engine.request.request import Reservation
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import handoff_to_proto, ticket_to_proto
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.tickets import Ticket
from baton.worker.context import WorkerContext
from baton.worker.host_process import has_died

LOOK_S = 0.05
"""Between two looks at the processes that memory is kept from, while there are any."""
ASK_S = 0.5
"""Between two attempts to reach them."""


@dataclass(frozen=True)
class Writer:
    """A prefill worker that may still write into memory of this rank."""

    peer: common_pb2.WorkerIdentity
    process: common_pb2.HostProcess

    @property
    def incarnation_key(self) -> tuple[str, int]:
        return self.peer.worker_id, self.peer.incarnation


@dataclass(frozen=True)
class Held:
    """One hand-off's memory. `end` is what becomes of the hand-off with the proof."""

    writer: Writer
    ticket: Ticket
    reservation: Reservation
    handoff: Handoff
    end: HandoffState

    @property
    def question(self) -> handoff_pb2.CancelPrefill:
        """Asks the writer, by a later stream, whether it is done; it answers with Drained."""
        return handoff_pb2.CancelPrefill(
            **handoff_to_proto(self.ticket.handoff),
            **ticket_to_proto(self.ticket.name),
            reason="is anything of it still under way?",
        )


class Quarantine:
    """Everything happens on the asyncio thread."""

    def __init__(
        self,
        context: WorkerContext,
        grants: Grants,
        reach: Callable[[common_pb2.WorkerIdentity], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """reach: sees to it that a stream joins this rank to a peer; what is to be asked of it is
        in `questions`."""
        self._context = context
        self._clock = clock
        self._reach = reach
        self._grants = grants
        self._held: dict[TicketId, Held] = {}
        self._since_s: dict[TicketId, float] = {}
        self._filled = asyncio.Event()

    def hold(self, held: Held, reason: str) -> None:
        """Keep the memory of a hand-off that is otherwise over."""
        held.handoff.move(HandoffState.QUARANTINED, reason)
        reservation = held.reservation
        self._context.port.post(
            lambda engine: engine.reservations.quarantine(reservation), "quarantine"
        )
        self._held[held.ticket.name] = held
        self._since_s[held.ticket.name] = self._clock()
        self._filled.set()

    def drained(self, ticket: TicketId) -> None:
        """Release a ticket on the first proof: its writer has drained. Tickets that are not held
        are ignored."""
        held = self._held.get(ticket)
        if held is not None:
            self._release(held, "its writer has drained")

    def torn_down(self, writer: Writer) -> None:
        """Release this writer's tickets on the third proof: it needs our side to write, which is
        gone."""
        self._release_all(lambda held: held.writer == writer, "its connection is torn down")

    def questions(self, peer: common_pb2.WorkerIdentity) -> list[handoff_pb2.CancelPrefill]:
        """Return the cancellations to send to a peer that has come back, one for each ticket that
        it holds."""
        incarnation_key = (peer.worker_id, peer.incarnation)
        return [
            held.question
            for held in self._held.values()
            if held.writer.incarnation_key == incarnation_key
        ]

    def refusal(self, peer: common_pb2.WorkerIdentity) -> str | None:
        """Return why this peer gets no new hand-offs, because it keeps too much memory from us;
        else None."""
        most = self._context.engine.plan.quarantine_slots
        incarnation_key = (peer.worker_id, peer.incarnation)
        theirs = [
            number
            for number, held in self._held.items()
            if held.writer.incarnation_key == incarnation_key
        ]
        since = [self._since_s[number] for number in theirs]
        if len(since) < most or self._clock() - min(since) < self._context.lease_s:
            return None  # a drain takes a moment: that many cancels at once are no reason
        return (
            f"prefill worker {peer.worker_id} gets no new requests: it may still write under "
            f"{len(since)} tickets that have ended (limit {most}), the oldest for more than "
            f"{self._context.lease_s:g} s; resume or end its process"
        )

    async def run(self) -> None:
        """Look for the second proof, and ask for the first where a stream was lost. Runs until
        cancelled."""
        ours, asked_s = self._context.hello.process, self._clock()
        while True:
            await self._filled.wait()
            await asyncio.sleep(LOOK_S)  # most end by a drain before anyone has looked
            self._release_all(
                lambda held: has_died(ours, held.writer.process), "its writer's process has died"
            )
            if self._clock() - asked_s > ASK_S:
                asked_s = self._clock()
                peers = {
                    held.writer.incarnation_key: held.writer.peer for held in self._held.values()
                }
                for peer in peers.values():
                    self._reach(peer)
            if not self._held:
                self._filled.clear()

    def _release_all(self, proved: Callable[[Held], bool], proof: str) -> None:
        for held in [held for held in self._held.values() if proved(held)]:
            self._release(held, proof)

    def _release(self, held: Held, proof: str) -> None:
        del self._held[held.ticket.name], self._since_s[held.ticket.name]
        self._grants.give_back(held.reservation)
        held.handoff.move(held.end, proof)
        self._context.handoffs.close(held.handoff)
