"""Writes the state of one prompt into the memory of a decode rank."""

import time
from collections.abc import Callable

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.state_ref import StateRef
from baton.engine.layout.layout import PageLayout
from baton.prefill.messages import HandoffMessages
from baton.prefill.open_writes import WrittenTicket
from baton.prefill.peer_connection import PeerConnection
from baton.prefill.prompt_state import PromptState
from baton.prefill.writer_state import ALLOWED, WriterState
from baton.proto import handoff_pb2
from baton.rpc.convert import handoff_to_proto, ticket_to_proto
from baton.transfer.channels.ends import WriteOperation
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.memory.segments import Segment, nbytes
from baton.transfer.state_machine import StateMachine
from baton.transfer.tickets import Claim, Received


class HandoffWriter:
    """The writing of one hand-off: from its ticket to the rank's receipt.

    The channel may read the engine's memory from the first segment until `write` returns, or until
    `stop` has called back. Only then does the engine get that memory back.
    """

    def __init__(
        self,
        handoff: Handoff,
        prompt: PromptState,
        pages: PageLayout,
        peer: PeerConnection,
        messages: HandoffMessages,
        origin: str,
    ) -> None:
        """origin: id of this worker, for errors."""
        self._handoff = handoff
        self._prompt = prompt
        self._pages = pages
        self._peer = peer
        self._messages = messages
        self._origin = origin
        name = f"writer of hand-off {handoff.name}"
        self._machine = StateMachine(name, ALLOWED, WriterState.WAITING)
        self._sent = Received(0, 0, 0)
        self._ticket: WrittenTicket
        self._writing: WriteOperation

    @property
    def state(self) -> WriterState:
        return self._machine.state

    def grant(self, claim: Claim) -> None:
        """Take the ticket: `write` comes next."""
        self._machine.move(WriterState.CONNECTING)
        self._ticket = self._peer.ticket(claim.ticket)
        self._peer.open_writes.opened(self._ticket)

    async def write(self, claim: Claim, target: StateRef) -> None:
        """Post the prompt's state as it is computed. Return once it has left this engine's memory.

        target: the rank's memory, which has the KV of the tokens below `kv_from` already.
        Raises TransferError.
        """
        sender = await self._peer.sender()
        self._prompt.begin(target.kv_from, sender.segment_bytes)
        segments = await self._prompt.take()
        # What is computed as a whole may leave as a whole, and cost less.
        size = sum(map(self._size_of, segments)) if self._prompt.all_taken else None
        self._writing = sender.open(claim, target, self._moving, size)
        self._machine.move(WriterState.POSTING)
        await self._post_all(segments)
        self._machine.move(WriterState.POSTED)
        await self._prompt.completed()
        if (done := self.take_done()) is not None:
            self._messages.done(done)
        await self._writing.flush()
        self._machine.move(WriterState.RELEASED)

    def take_done(self) -> handoff_pb2.Done | None:
        """Return the Done message for the caller to send. None if it is too early or was sent."""
        if self.state is not WriterState.POSTED:
            return None
        self._machine.move(WriterState.FLUSHING)
        return handoff_pb2.Done(
            **handoff_to_proto(self._handoff.name),
            **ticket_to_proto(self._ticket.ticket),
            segments=self._sent.segments,
            bytes_state=self._sent.bytes_state,
            bytes_kv=self._sent.bytes_kv,
            tail_us=round((time.monotonic() - self._prompt.layers_ended_s) * 1e6),
            cached_state=self._prompt.cached_state,
        )

    async def receipt(self) -> None:
        """Wait until the rank has every byte. Raise TransferError, or ApiError for a loss."""
        received = await self._writing.finish()
        if received != self._sent:
            message = f"{self._peer.rank.worker_id} received {received}; sent were {self._sent}"
            raise ApiError(ErrorCode.DATA_LOSS, message, origin=self._origin)
        self._machine.move(WriterState.RECEIVED)
        self._peer.open_writes.closed(self._ticket)

    def stop(self, on_quiet: Callable[[], None]) -> None:
        """Post nothing more. The caller has made the last move and cancelled its `write`.

        on_quiet: called, now or later, once the channel no longer reads the engine's memory. By
        then the rank has been told that nothing is written under its ticket any more, unless the
        hand-off was handed over, or no ticket was granted.
        """
        match self.state:
            case WriterState.RECEIVED:
                # A cancel or a failure may still come between the receipt and the last move. The
                # rank then keeps the ticket's memory until it is told that nobody writes there.
                if self._handoff.state is not HandoffState.COMPLETE:
                    self._messages.drained(self._ticket)
                on_quiet()
            case WriterState.WAITING:
                self._machine.move(WriterState.STOPPED)
                on_quiet()
            case WriterState.CONNECTING:
                self._stopped(on_quiet)
                self._peer.open_writes.closed(self._ticket)
            case _:
                self._machine.move(WriterState.DRAINING)
                self._writing.cancel()
                self._peer.open_writes.drain(
                    self._ticket, self._writing, lambda: self._stopped(on_quiet)
                )

    def _stopped(self, on_quiet: Callable[[], None]) -> None:
        self._machine.move(WriterState.STOPPED)
        self._messages.drained(self._ticket)
        on_quiet()

    async def _post_all(self, segments: list[Segment]) -> None:
        """Post `segments`, and those that follow."""
        while segments:
            for segment in segments:
                if self._handoff.state is HandoffState.RESERVED:
                    self._handoff.move(HandoffState.WRITING)
                await self._writing.write(segment, self._prompt.holder)
                self._sent = self._sent.plus(segment.kind, self._size_of(segment))
            segments = await self._prompt.take()

    def _size_of(self, segment: Segment) -> int:
        return nbytes(segment, self._pages)

    def _moving(self, under_way: bool, segments: int) -> None:
        done = self.state in (WriterState.FLUSHING, WriterState.RELEASED)
        if done and not under_way and self._peer.counts_by_done:
            return  # Done has said how many segments come, and the rank looks for no more
        self._messages.moving(self._ticket, under_way, segments)
