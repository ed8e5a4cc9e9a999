"""The stream that one decode rank holds to this worker."""

import logging
from collections.abc import AsyncIterator, Callable

from grpc import aio

from baton.core.errors import PeerSilentError
from baton.prefill.open_writes import OpenWrites
from baton.prefill.outgoing import OutgoingHandoff
from baton.prefill.peer_connection import PeerConnection
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import (
    handoff_from_proto,
    handoff_to_proto,
    ticket_from_proto,
    ticket_to_proto,
)
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
        self._handoffs.pop(handoff.name, None)

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
                if handoff := self._handoffs.get(handoff_from_proto(destination)):
                    handoff.on_destination(destination)
                else:
                    self._say_when_drained(destination)
            case "cancel":
                cancel = message.cancel
                if handoff := self._handoffs.get(handoff_from_proto(cancel)):
                    handoff.cancel(cancel.reason)
                elif cancel.ticket_id:
                    self._say_when_drained(cancel)
            case "offer":
                self._offered(message.offer, self)
            case "heartbeat":
                beat = handoff_pb2.PrefillMessage(heartbeat=message.heartbeat)
                self.send(beat)

    def _start(self, request: handoff_pb2.PrefillRequest) -> None:
        name = handoff_from_proto(request)
        if name in self._handoffs:
            log.warning("request %s was sent twice; the second is ignored", name)
            return
        handoff = self._begin(request, self)
        self._handoffs[name] = handoff
        handoff.begin()

    def _say_when_drained(self, about: _About) -> None:
        """Send `Drained` once no write for this hand-off is pending.

        The hand-off has ended, or belonged to an earlier stream of this rank.
        """
        ticket = ticket_from_proto(about)
        drained = handoff_pb2.Drained(
            **handoff_to_proto(handoff_from_proto(about)), **ticket_to_proto(ticket)
        )
        message = handoff_pb2.PrefillMessage(drained=drained)
        written = self.peer_connection.ticket(ticket)
        self.peer_connection.open_writes.ask(written, lambda: self.send(message))
