"""The stream that one decode rank holds to this worker."""

import logging
from collections.abc import AsyncIterator, Callable

from grpc import aio

from baton.core.errors import PeerSilentError
from baton.prefill.open_writes import OpenWrites
from baton.prefill.outgoing import OutgoingHandoff
from baton.prefill.peer_connection import PeerConnection
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.handoff_joins import join_to_rank, joins, parts_of
from baton.rpc.lease import Lease
from baton.rpc.streams import Outbox, first_of
from baton.transfer.channels.channel_set import ChannelSet

log = logging.getLogger(__name__)

Begin = Callable[[handoff_pb2.PrefillRequest, "DecodePeer"], OutgoingHandoff]
Offered = Callable[[handoff_pb2.StateOffer, "DecodePeer"], None]
_About = handoff_pb2.CancelPrefill | handoff_pb2.Destination


class DecodePeer:
    """One rank's stream and the hand-offs under way over it. They end with the stream."""

    def __init__(
        self,
        hello: common_pb2.Hello,
        process: common_pb2.HostProcess,
        channels: ChannelSet,
        open_writes: OpenWrites,
        lease_s: float,
        begin: Begin,
        offered: Offered,
    ) -> None:
        """hello: the rank's. process: this worker's own.

        begin: makes the hand-off for a request. offered: called when the rank offers state.
        """
        self.identity = hello.worker
        self.peer_connection = PeerConnection(hello, process, channels, open_writes, self.send)
        self._begin = begin
        self._offered = offered
        self._outbox: Outbox[handoff_pb2.PrefillMessage] = Outbox()
        self._lease = Lease(f"decode rank {self.identity.worker_id}", lease_s)
        self._handoffs: dict[tuple[str, int], OutgoingHandoff] = {}
        self._join = join_to_rank if joins(hello) else None

    def send(self, message: handoff_pb2.PrefillMessage) -> None:
        self._outbox.put(message)

    def forget(self, handoff: OutgoingHandoff) -> None:
        """Drop a hand-off that has ended. Idempotent."""
        self._handoffs.pop(handoff.key, None)

    async def serve(
        self, messages: AsyncIterator[handoff_pb2.DecodeMessage], context: aio.ServicerContext
    ) -> None:
        """Answer the rank until its stream ends or it is silent for its lease.

        The hand-offs that are left then expire.
        """
        reason = f"decode rank {self.identity.worker_id} went away"
        try:
            await first_of(
                self._read(messages),
                self._outbox.drain(context.write, self._join),
                self._lease.watch(),
                self.peer_connection.hold(),
            )
        except PeerSilentError as silent:
            reason = str(silent)
            log.warning("%s", silent)
        finally:
            for handoff in list(self._handoffs.values()):
                handoff.expire(reason)
            # In a task of its own: gRPC cancels this one when the rank's connection breaks.
            name = f"end of the connection to {self.identity.worker_id}"
            self.peer_connection.open_writes.end(self.peer_connection.close, name)

    async def _read(self, messages: AsyncIterator[handoff_pb2.DecodeMessage]) -> None:
        async for message in messages:
            self._lease.heard()
            self.peer_connection.heard()
            for part in parts_of(message):
                self._take(part)

    def _take(self, message: handoff_pb2.DecodeMessage) -> None:
        match message.WhichOneof("kind"):
            case "request":
                self._start(message.request)
            case "destination":
                destination = message.destination
                if handoff := self._find(destination.request_id, destination.attempt):
                    handoff.on_destination(destination)
                else:
                    self._say_when_drained(destination)
            case "cancel":
                cancel = message.cancel
                if handoff := self._find(cancel.request_id, cancel.attempt):
                    handoff.cancel(cancel.reason)
                elif cancel.ticket_id:
                    self._say_when_drained(cancel)
            case "offer":
                self._offered(message.offer, self)
            case "heartbeat":
                beat = handoff_pb2.PrefillMessage(heartbeat=message.heartbeat)
                self.send(beat)

    def _start(self, request: handoff_pb2.PrefillRequest) -> None:
        if self._find(request.request_id, request.attempt) is not None:
            log.warning(
                "request %s/%d was sent twice; the second is ignored",
                request.request_id,
                request.attempt,
            )
            return
        handoff = self._begin(request, self)
        self._handoffs[handoff.key] = handoff
        handoff.begin()

    def _say_when_drained(self, about: _About) -> None:
        """Send `Drained` once no write for this hand-off is pending.

        The hand-off has ended, or belonged to an earlier stream of this rank.
        """
        drained = handoff_pb2.Drained(
            request_id=about.request_id,
            attempt=about.attempt,
            ticket_id=about.ticket_id,
            generation=about.generation,
        )
        message = handoff_pb2.PrefillMessage(drained=drained)
        ticket = self.peer_connection.ticket(about.ticket_id, about.generation)
        self.peer_connection.open_writes.ask(ticket, lambda: self.send(message))

    def _find(self, request_id: str, attempt: int) -> OutgoingHandoff | None:
        """Return the hand-off. None if it has ended: the message about it came too late."""
        return self._handoffs.get((request_id, attempt))
