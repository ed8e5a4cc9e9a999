"""The stream from this rank to one prefill worker."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError, PeerLostError
from baton.core.handoff_ids import HandoffId
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.decode.quarantine import Quarantine, Writer
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.rpc.awake_timeout import awake_timeout
from baton.rpc.channel_options import OPTIONS
from baton.rpc.convert import handoff_from_proto, ticket_from_proto
from baton.rpc.credentials import Credentials
from baton.rpc.errors import error_of, error_of_call, make_error
from baton.rpc.handoff_joins import join_to_prefill, joins, parts_of
from baton.rpc.handshake import check_hello, check_identity
from baton.rpc.lease import Lease
from baton.rpc.streams import Outbox, check_cancelled, first_of
from baton.transfer.channels.channel_set import ChannelSet, Receiver
from baton.transfer.tickets import Ticket
from baton.worker.host_process import has_died, may_write_without_us, unprovable

log = logging.getLogger(__name__)


OnMessage = Callable[[handoff_pb2.PrefillMessage], None]
OnLost = Callable[[common_pb2.Error], None]


@dataclass(frozen=True)
class _OpenHandoff:
    """The callbacks of one hand-off under way over a link."""

    on_message: OnMessage
    on_lost: OnLost


class PrefillLink:
    """One connection to a prefill worker, and the hand-offs under way over it.

    It connects once. When the stream ends, `on_end` is called and the link is used no more. The
    next request makes a new link, which finds a restarted worker at once.
    """

    def __init__(
        self,
        peer: common_pb2.WorkerIdentity,
        hello: common_pb2.Hello,
        credentials: Credentials,
        channels: ChannelSet,
        quarantine: Quarantine,
        owner: ProcessSupervisor,
        lease_s: float,
        on_end: Callable[["PrefillLink"], None],
    ) -> None:
        """hello, credentials: this rank's own.

        on_end: called once, before the hand-offs are told.
        """
        self.peer = peer
        self._hello = hello
        self._credentials = credentials
        self._channels = channels
        self._quarantine = quarantine
        self._receiver: Receiver | None = None
        self.writer = Writer(peer, common_pb2.HostProcess())  # its process is known after Hello
        self.channel = ""  # the channel that the prefill worker chose, and why
        self._lease_s = lease_s
        self._heartbeats_sent_s: dict[int, float] = {}  # by number, unanswered
        self._round_trip_s = math.inf
        self._on_end = on_end
        self._origin = hello.worker.worker_id
        self._open: dict[HandoffId, _OpenHandoff] = {}
        self._outbox: Outbox[handoff_pb2.DecodeMessage] = Outbox()
        # END: hand-offs over this link would never hear of its end, nor their memory be freed.
        # Whatever happens on the connection ends the link alone, see `_run`.
        name = f"link to {peer.worker_id}"
        self._task = spawn(self._run, owner, OnFailure.END, name, may_return=True)

    def open(
        self,
        name: HandoffId,
        request: handoff_pb2.PrefillRequest,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        """Begin a hand-off: send its request once connected.

        on_message: called with every message about it. on_lost: called
        if the stream ends first. Neither is called after `forget`.
        """
        self._open[name] = _OpenHandoff(on_message, on_lost)
        self.send(handoff_pb2.DecodeMessage(request=request))

    def send(self, message: handoff_pb2.DecodeMessage) -> None:
        self._outbox.put(message)

    def forget(self, name: HandoffId) -> None:
        """End the calls for a hand-off. Idempotent."""
        self._open.pop(name, None)

    def arrived(self, ticket: Ticket) -> None:
        """Look for no more bytes under a ticket: all are here, and it is closed."""
        if self._receiver is not None:
            self._receiver.moving(ticket.name, False, 0)

    @property
    def one_sided(self) -> bool:
        """True if the prefill worker may write without this rank's help, see `Receiver`."""
        return self._receiver is not None and self._receiver.one_sided

    @property
    def one_way_s(self) -> float:
        """Return the seconds that a message from the peer takes: half of the fastest round trip.

        0 until a round trip is known.
        """
        return self._round_trip_s / 2 if math.isfinite(self._round_trip_s) else 0.0

    async def close(self) -> None:
        """End the stream because the rank stops. Its requests have ended already."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        error = self._unavailable("it ended the stream")
        try:
            self._receiver = await self._channels.open_receiver()
            await self._attend(self._receiver)
        except BatonError as failed:
            error = error_of(failed, self._origin)
        except aio.AioRpcError as failed:
            error = error_of_call(failed, self.peer.worker_id)
        except asyncio.CancelledError:
            check_cancelled()  # else grpc.aio has cancelled the call
            error = self._unavailable("its call was cancelled")
        except asyncio.InvalidStateError:  # grpc.aio raises it for a finished call
            error = self._unavailable("its stream is closed")
        except TimeoutError:
            error = self._unavailable(f"no answer to Hello within {self._lease_s:g} s")
        except Exception as fault:  # a fault of ours, or of a channel's library: others serve on
            log.exception("the link to prefill worker %s has failed", self.peer.worker_id)
            error = error_of(fault, self._origin)
        finally:
            # `on_end` first: a hand-off's next attempt must not come back to this link.
            self._on_end(self)
            for handoff in list(self._open.values()):
                handoff.on_lost(error)
            await self._tear_down()
        log.warning("link to prefill worker %s ended: %s", self.peer.worker_id, error.message)

    async def _tear_down(self) -> None:
        if self._receiver is None:
            return
        await self._receiver.close()
        if not may_write_without_us(self._hello.process, self.writer.process):
            self._quarantine.torn_down(self.writer)

    async def _attend(self, receiver: Receiver) -> None:
        async with self._credentials.dial_worker(self.peer, OPTIONS) as channel:
            call = handoff_pb2_grpc.HandoffStub(channel).Control()
            try:
                async with awake_timeout(self._lease_s):
                    theirs = await self._greet(call, receiver)
                join = join_to_prefill if joins(theirs) else None
                for question in self._quarantine.questions(self.peer):
                    self.send(handoff_pb2.DecodeMessage(cancel=question))
                lease = Lease(f"prefill worker {self.peer.worker_id}", self._lease_s)
                beats = itertools.count(1)
                await first_of(
                    self._read(call, lease, receiver),
                    self._outbox.drain(call.write, join),
                    lease.watch(lambda: self._beat(next(beats))),
                )
            finally:
                call.cancel()

    async def _greet(self, call: aio.StreamStreamCall, receiver: Receiver) -> common_pb2.Hello:
        """Return the prefill worker's Hello. Raises BatonError."""
        hello = common_pb2.Hello()
        hello.CopyFrom(self._hello)
        for name, endpoint in receiver.offers.items():
            hello.channels.add(channel=name, endpoint=endpoint)
        await call.write(handoff_pb2.DecodeMessage(hello=hello))
        first = await call.read()
        if first is aio.EOF or not first.HasField("hello"):
            raise PeerLostError(f"prefill worker {self.peer.worker_id} did not begin with Hello")
        check_hello(self._hello, first.hello)
        theirs = first.hello.worker
        check_identity(self.peer, theirs)
        ours, process = self._hello.process, first.hello.process
        if has_died(ours, process):
            process.pid = 0  # it is alive, so our /proc does not show its pid namespace
        if unprovable(ours, process) is not None:
            receiver.bar_one_sided()  # the prefill worker reports the reason
        self.writer = Writer(theirs, process)
        found: common_pb2.Hello = first.hello
        return found

    async def _read(self, call: aio.StreamStreamCall, lease: Lease, receiver: Receiver) -> None:
        while (message := await call.read()) is not aio.EOF:
            lease.heard()
            for part in parts_of(message):
                self._take(part, receiver)

    def _take(self, message: handoff_pb2.PrefillMessage, receiver: Receiver) -> None:
        kind = message.WhichOneof("kind")
        if kind in (None, "hello", "several"):
            return
        if kind == "heartbeat":
            sent_s = self._heartbeats_sent_s.pop(message.heartbeat.sequence, -math.inf)
            self._round_trip_s = min(self._round_trip_s, time.monotonic() - sent_s)
            return
        if kind == "channel":
            self._chosen(message.channel, receiver)
            return
        if kind == "moving":  # also after the hand-off's end: it stops the polling
            word = message.moving
            receiver.moving(ticket_from_proto(word), word.under_way, word.segments)
            return
        if kind == "drained":
            ticket = ticket_from_proto(message.drained)
            receiver.moving(ticket, False, 0)
            self._quarantine.drained(ticket)
            return
        about = getattr(message, kind)
        handoff = self._open.get(handoff_from_proto(about))
        if handoff is not None:
            handoff.on_message(message)

    def _chosen(self, word: handoff_pb2.ChannelChosen, receiver: Receiver) -> None:
        self.channel = f"{word.channel}: {word.reason}"
        receiver.chosen(word.channel)
        log.info(
            "channel chosen",
            extra={
                "peer": self.peer.worker_id,
                "channel": word.channel,
                "reason": word.reason,
            },
        )

    def _beat(self, sequence: int) -> None:
        self._heartbeats_sent_s[sequence] = time.monotonic()
        self.send(handoff_pb2.DecodeMessage(heartbeat=common_pb2.Heartbeat(sequence=sequence)))

    def _unavailable(self, why: str) -> common_pb2.Error:
        message = f"prefill worker {self.peer.worker_id}: {why}"
        return make_error(ErrorCode.UNAVAILABLE, self._origin, message)
