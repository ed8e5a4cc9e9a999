"""This rank's one stream to one prefill worker."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from grpc import aio

from baton.decode.quarantine import Quarantine, Writer
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.transfer.channel import Inlet
from baton.transfer.errors import ChannelError
from baton.transfer.grpc_options import OPTIONS
from baton.transfer.inlets import Inlets
from baton.transfer.nixl_outlet import NIXL
from baton.worker.errors import (
    PeerSilentError,
    WorkerError,
    error_of,
    error_of_call,
    make_error,
)
from baton.worker.handshake import check_hello
from baton.worker.host_process import has_died, may_write_without_us, unprovable
from baton.worker.streams import Lease, Outbox, first_of

log = logging.getLogger(__name__)


class Leg(Protocol):
    """A hand-off under way over this link."""

    @property
    def key(self) -> tuple[str, int]: ...

    def on_message(self, message: handoff_pb2.PrefillMessage) -> None: ...

    def on_lost(self, error: common_pb2.Error) -> None:
        """The stream is gone, and this hand-off with it."""
        ...


class PrefillLink:
    """Connects once. When the stream ends it is of no more use, and `on_end` is called: the next
    request makes a new one, so a worker that came back is found at once, and one that went costs
    nothing."""

    def __init__(
        self,
        peer: common_pb2.WorkerIdentity,
        hello: common_pb2.Hello,
        inlets: Inlets,
        quarantine: Quarantine,
        lease_s: float,
        on_end: Callable[["PrefillLink"], None],
    ) -> None:
        """hello: this rank's own."""
        self.peer = peer
        self._hello = hello
        self._inlets = inlets
        self._quarantine = quarantine
        self._inlet: Inlet | None = None
        self.writer = Writer(peer, common_pb2.HostProcess())  # whole once it has said Hello
        self.channel = ""  # what the prefill worker has chosen, and why
        self._lease_s = lease_s
        self._beats_s: dict[int, float] = {}  # when those that have no answer yet were sent
        self._round_s = math.inf
        self._on_end = on_end
        self._origin = hello.worker.worker_id
        self._legs: dict[tuple[str, int], Leg] = {}
        self._outbox: Outbox[handoff_pb2.DecodeMessage] = Outbox()
        self._task = asyncio.ensure_future(self._run())

    def open(self, leg: Leg, request: handoff_pb2.PrefillRequest) -> None:
        """Send the request once connected; from now on the leg hears what is said of it."""
        self._legs[leg.key] = leg
        self.send(handoff_pb2.DecodeMessage(request=request))

    def send(self, message: handoff_pb2.DecodeMessage) -> None:
        self._outbox.put(message)

    def forget(self, leg: Leg) -> None:
        self._legs.pop(leg.key, None)

    @property
    def one_sided(self) -> bool:
        """See `Inlet`."""
        return self._inlet is not None and self._inlet.one_sided

    @property
    def flight_s(self) -> float:
        """What a message from the peer takes: half of a heartbeat's fastest round. 0 until one is
        known."""
        return self._round_s / 2 if math.isfinite(self._round_s) else 0.0

    async def close(self) -> None:
        """The rank is stopping. Legs are not told: they have ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        error = self._unavailable("it ended the stream")
        try:
            self._inlet = await self._inlets.open()
            await self._attend(self._inlet)
        except WorkerError as refused:
            error = refused.error
        except ChannelError as failed:
            error = error_of(failed, self._origin)
        except aio.AioRpcError as failed:
            error = error_of_call(failed, self.peer.worker_id)
        except asyncio.InvalidStateError:  # grpc.aio's word for a finished call
            error = self._unavailable("its stream is closed")
        except TimeoutError:
            error = self._unavailable(f"no answer to Hello within {self._lease_s:g} s")
        except PeerSilentError as silent:
            error = error_of(silent, self._origin)
        finally:
            # First the end, then the legs: what they try next must not come back to this link.
            self._on_end(self)
            for leg in list(self._legs.values()):
                leg.on_lost(error)
            await self._tear_down()
        log.warning("link to prefill worker %s ended: %s", self.peer.worker_id, error.message)

    async def _tear_down(self) -> None:
        if self._inlet is None:
            return
        await self._inlet.close()
        if not may_write_without_us(self._hello.process, self.writer.process):
            self._quarantine.torn_down(self.writer)

    async def _attend(self, inlet: Inlet) -> None:
        async with aio.insecure_channel(self.peer.address, options=OPTIONS) as channel:
            call = handoff_pb2_grpc.HandoffStub(channel).Control()
            try:
                async with asyncio.timeout(self._lease_s):
                    await self._greet(call, inlet)
                for question in self._quarantine.questions(self.peer):
                    self.send(handoff_pb2.DecodeMessage(cancel=question))
                lease = Lease(f"prefill worker {self.peer.worker_id}", self._lease_s)
                beats = itertools.count(1)
                await first_of(
                    self._read(call, lease, inlet),
                    self._outbox.drain(call.write),
                    lease.watch(lambda: self._beat(next(beats))),
                )
            finally:
                call.cancel()

    async def _greet(self, call: aio.StreamStreamCall, inlet: Inlet) -> None:
        hello = common_pb2.Hello()
        hello.CopyFrom(self._hello)
        for name, endpoint in inlet.offers.items():
            hello.channels.add(channel=name, endpoint=endpoint)
        await call.write(handoff_pb2.DecodeMessage(hello=hello))
        first = await call.read()
        if first is aio.EOF or not first.HasField("hello"):
            raise WorkerError(self._unavailable("it did not begin with Hello"))
        check_hello(self._hello, first.hello)
        theirs = first.hello.worker
        if (theirs.worker_id, theirs.incarnation) != (self.peer.worker_id, self.peer.incarnation):
            raise WorkerError(
                self._unavailable(
                    f"{self.peer.address} is now {theirs.worker_id} {theirs.incarnation}, not "
                    f"{self.peer.worker_id} {self.peer.incarnation}"
                )
            )
        ours, process = self._hello.process, first.hello.process
        if has_died(ours, process):
            process.pid = 0  # it speaks: our /proc does not show it, now and later
        if unprovable(ours, process) is not None:
            inlet.bar(NIXL)  # the writer says why
        self.writer = Writer(theirs, process)

    async def _read(self, call: aio.StreamStreamCall, lease: Lease, inlet: Inlet) -> None:
        while (message := await call.read()) is not aio.EOF:
            lease.heard()
            kind = message.WhichOneof("kind")
            if kind is None or kind == "hello":
                continue
            if kind == "heartbeat":
                sent_s = self._beats_s.pop(message.heartbeat.sequence, -math.inf)
                self._round_s = min(self._round_s, time.monotonic() - sent_s)
                continue
            if kind == "channel":
                self._chosen(message.channel, inlet)
                continue
            if kind == "moving":  # heard also when the hand-off is over: it ends the looking
                word = message.moving
                inlet.moving(word.ticket_id, word.generation, word.under_way, word.segments)
                continue
            if kind == "drained":
                self._quarantine.drained(message.drained.ticket_id, message.drained.generation)
                continue
            about = getattr(message, kind)
            leg = self._legs.get((about.request_id, about.attempt))
            if leg is not None:
                leg.on_message(message)

    def _chosen(self, word: handoff_pb2.ChannelChosen, inlet: Inlet) -> None:
        self.channel = f"{word.channel}: {word.reason}"
        inlet.chosen(word.channel)
        log.info(
            "channel chosen",
            extra={
                "peer": self.peer.worker_id,
                "channel": word.channel,
                "reason": word.reason,
            },
        )

    def _beat(self, sequence: int) -> None:
        self._beats_s[sequence] = time.monotonic()
        self.send(handoff_pb2.DecodeMessage(heartbeat=common_pb2.Heartbeat(sequence=sequence)))

    def _unavailable(self, why: str) -> common_pb2.Error:
        message = f"prefill worker {self.peer.worker_id}: {why}"
        return make_error(common_pb2.UNAVAILABLE, self._origin, message, retryable=True)
