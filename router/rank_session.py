"""The one long-lived stream to a decode rank, shared by all of this router's requests on it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from baton.api.errors import ApiError, ErrorCode
from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import Heartbeat, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import (
    CancelRequest,
    Prefills,
    RankMessage,
    RouterMessage,
    StartRequest,
)
from baton.router.answer_stream import AnswerStream
from baton.router.errors import RankLost
from baton.router.worker_table import Worker

log = logging.getLogger(__name__)

# Messages between our own processes are bounded by what made them, not by gRPC's 4 MiB: a prompt
# of a million tokens is 3 MB. The pool is local so that a restarted rank's address does not
# inherit the back-off of the one before.
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
BEATS_PER_LEASE = 4
"""Heartbeats, and attempts to connect, in one lease."""


@dataclass(frozen=True)
class SessionOptions:
    """The same for all sessions of a router."""

    router_id: str
    lease_s: float  # silence for longer ends the session
    clock: Callable[[], float]  # monotonic, in seconds


class RankSession:
    """Connects, and connects again, until it is closed; its requests fail with the connection.

    `on_change` is called when `ready` has changed.
    """

    def __init__(
        self,
        worker: Worker,
        options: SessionOptions,
        prefills: Callable[[], Sequence[WorkerIdentity]],
        on_change: Callable[[], None],
    ) -> None:
        """prefills: the prefill workers that there are."""
        self.worker = worker
        self.ready = False
        self._options = options
        self._prefills = prefills
        self._on_change = on_change
        self._streams: dict[str, AnswerStream] = {}
        self._outgoing: asyncio.Queue[RouterMessage] = asyncio.Queue()
        self._heard = 0.0  # when the last message came

    def start(self, request: StartRequest, scored_to: int = 0) -> AnswerStream:
        """Send the request; its tokens, or why there are none, come out of the stream.

        scored_to: prompt positions below have been scored by an earlier attempt.
        """
        stream = AnswerStream(
            request.request_id,
            request.attempt,
            self._options.clock,
            given=len(request.output_ids),
            scored_to=scored_to,
        )
        if not self.ready:
            stream.rank_done = True
            stream.fail(self._loss("its session is not connected"))
            return stream
        self._streams[request.request_id] = stream
        self._outgoing.put_nowait(RouterMessage(start=request))
        return stream

    def end(self, stream: AnswerStream, reason: str) -> None:
        """The reader is done with `stream`: forget it, and cancel it where the rank still works."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
        if not stream.rank_done and self.ready:
            cancel = CancelRequest(
                request_id=stream.request_id, attempt=stream.attempt, reason=reason
            )
            self._outgoing.put_nowait(RouterMessage(cancel=cancel))

    def introduce(self, prefills: Sequence[WorkerIdentity]) -> None:
        """The rank may join these now, so that no request waits for it. Nothing where it is not
        connected: it hears of all of them when it is."""
        if self.ready and prefills:
            self._outgoing.put_nowait(RouterMessage(prefills=Prefills(workers=prefills)))

    def close(self, reason: str) -> None:
        """The worker is gone: its requests fail now. `run` is to be cancelled in the same turn."""
        self._lose(reason)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    await self._attend()
                except RankLost as lost:
                    log.warning("session with %s: %s", self.worker.worker_id, lost)
                    self._lose(str(lost))
                await asyncio.sleep(self._options.lease_s / BEATS_PER_LEASE)
        finally:
            self._lose("its session is closed")

    async def _attend(self) -> None:
        """One connection, from Hello to the RankLost that ends it."""
        address = self.worker.identity.address
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            call = worker_pb2_grpc.RankStub(channel).Session()
            try:
                async with asyncio.timeout(self._options.lease_s):
                    await self._greet(call)
                await self._serve(call)
            except grpc.aio.AioRpcError as error:
                raise RankLost(
                    f"its stream broke: {error.code().name} {error.details()}"
                ) from error
            except asyncio.InvalidStateError as error:  # grpc.aio's word for a finished call
                raise RankLost("its stream is closed") from error
            except TimeoutError as error:
                raise RankLost("it did not answer Hello within its lease") from error
            finally:
                call.cancel()

    async def _serve(self, call: grpc.aio.StreamStreamCall) -> None:
        self._outgoing = asyncio.Queue()
        self._heard = self._options.clock()
        self.ready = True
        self.introduce(self._prefills())
        self._on_change()
        parts = (self._read(call), self._write(call), self._keep_lease())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()  # none returns: this raises
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, call: grpc.aio.StreamStreamCall) -> None:
        ours = Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            router_id=self._options.router_id,
        )
        await call.write(RouterMessage(hello=ours))
        message = await call.read()
        if message is grpc.aio.EOF or not message.HasField("hello"):
            raise RankLost("it did not begin with Hello")
        if message.hello.protocol_major != PROTOCOL_MAJOR:
            raise RankLost(
                f"it speaks protocol {message.hello.protocol_major}, not {PROTOCOL_MAJOR}"
            )
        theirs, expected = message.hello.worker, self.worker.identity
        if (theirs.worker_id, theirs.incarnation) != (expected.worker_id, expected.incarnation):
            raise RankLost(
                f"{expected.address} answers as {theirs.worker_id!r} incarnation "
                f"{theirs.incarnation}, not as {expected.worker_id!r} {expected.incarnation}"
            )

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        streams = self._streams
        while True:
            message: RankMessage = await call.read()
            if message is grpc.aio.EOF:
                raise RankLost("it ended its stream")
            self._heard = self._options.clock()
            for tokens in message.requests:
                stream = streams.get(tokens.request_id)
                if stream is not None:
                    stream.feed(tokens)

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await call.write(await self._outgoing.get())

    async def _keep_lease(self) -> None:
        """Send heartbeats; raise when the rank was silent for a lease."""
        clock, lease_s = self._options.clock, self._options.lease_s
        sequence = 0
        while True:
            sequence += 1
            self._outgoing.put_nowait(RouterMessage(heartbeat=Heartbeat(sequence=sequence)))
            before = clock()
            nap_s = min(lease_s / BEATS_PER_LEASE, self._heard + lease_s - before)
            await asyncio.sleep(nap_s)
            now = clock()
            # While this process was held up, what the rank said may lie unread: no silence.
            late_s = max(0.0, now - before - nap_s)
            self._heard = min(now, self._heard + late_s)
            if now - self._heard >= lease_s:
                raise RankLost(f"it was silent for its lease of {lease_s:g} s")

    def _lose(self, reason: str) -> None:
        was_ready, self.ready = self.ready, False
        for stream in self._streams.values():
            stream.rank_done = True
            stream.fail(self._loss(reason))
        self._streams.clear()
        if was_ready:
            self._on_change()

    def _loss(self, reason: str) -> ApiError:
        return ApiError(
            ErrorCode.UNAVAILABLE,
            f"decode rank {self.worker.worker_id} was lost: {reason}; send the request again",
            origin=self.worker.worker_id,
        )
