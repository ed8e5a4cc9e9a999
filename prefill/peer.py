"""One decode rank's stream to this worker."""

import logging
from collections.abc import AsyncIterator, Callable

from grpc import aio

from baton.prefill.drains import Drains
from baton.prefill.outgoing import OutgoingHandoff
from baton.prefill.way import Way
from baton.proto import common_pb2, handoff_pb2
from baton.transfer.outlets import Outlets
from baton.worker.errors import PeerSilentError
from baton.worker.streams import Lease, Outbox, first_of

log = logging.getLogger(__name__)

Begin = Callable[[handoff_pb2.PrefillRequest, "DecodePeer"], OutgoingHandoff]
Offered = Callable[[handoff_pb2.StateOffer, "DecodePeer"], None]
_About = handoff_pb2.CancelPrefill | handoff_pb2.Destination


class DecodePeer:
    """Its hand-offs live as long as the stream does."""

    def __init__(
        self,
        hello: common_pb2.Hello,
        process: common_pb2.HostProcess,
        outlets: Outlets,
        drains: Drains,
        lease_s: float,
        begin: Begin,
        offered: Offered,
    ) -> None:
        """hello: the rank's. process: this one. begin: makes a hand-off of a request that came in.
        offered: told of state that the rank has."""
        self.identity = hello.worker
        self.way = Way(hello, process, outlets, drains, self.send)
        self._begin = begin
        self._offered = offered
        self._outbox: Outbox[handoff_pb2.PrefillMessage] = Outbox()
        self._lease = Lease(f"decode rank {self.identity.worker_id}", lease_s)
        self._handoffs: dict[tuple[str, int], OutgoingHandoff] = {}

    def send(self, message: handoff_pb2.PrefillMessage) -> None:
        self._outbox.put(message)

    def forget(self, handoff: OutgoingHandoff) -> None:
        """`handoff` has ended."""
        self._handoffs.pop(handoff.key, None)

    async def serve(
        self, messages: AsyncIterator[handoff_pb2.DecodeMessage], context: aio.ServicerContext
    ) -> None:
        """Until the stream ends, or the rank is silent for its lease; then all is given up."""
        reason = f"decode rank {self.identity.worker_id} went away"
        try:
            await first_of(
                self._read(messages),
                self._outbox.drain(context.write),
                self._lease.watch(),
                self.way.hold(),
            )
        except PeerSilentError as silent:
            reason = str(silent)
            log.warning("%s", silent)
        finally:
            for handoff in list(self._handoffs.values()):
                handoff.expire(reason)
            # Not awaited here: where the rank's connection breaks, gRPC cancels this task.
            self.way.drains.end(self.way.close())

    async def _read(self, messages: AsyncIterator[handoff_pb2.DecodeMessage]) -> None:
        async for message in messages:
            self._lease.heard()
            self.way.heard()
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
            log.warning("%s/%d came twice", request.request_id, request.attempt)
            return
        handoff = self._begin(request, self)
        self._handoffs[handoff.key] = handoff
        handoff.begin()

    def _say_when_drained(self, about: _About) -> None:
        """Of a hand-off that has ended, or that an earlier stream of this rank had."""
        drained = handoff_pb2.Drained(
            request_id=about.request_id,
            attempt=about.attempt,
            ticket_id=about.ticket_id,
            generation=about.generation,
        )
        message = handoff_pb2.PrefillMessage(drained=drained)
        ticket = self.way.ticket(about.ticket_id, about.generation)
        self.way.drains.ask(ticket, lambda: self.send(message))

    def _find(self, request_id: str, attempt: int) -> OutgoingHandoff | None:
        """None for one that has ended: what is said of it came too late to matter."""
        return self._handoffs.get((request_id, attempt))
