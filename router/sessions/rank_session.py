"""The stream to a decode rank, which all requests of this router on that rank share."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from baton.api.admission.step_times import DecodeStepTimes, StepClock
from baton.api.answer_queue import StreamPace
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, BatonError, PeerLostError
from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import Heartbeat, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import (
    CancelRequest,
    Prefills,
    RankMessage,
    Recall,
    RouterMessage,
    StepTokens,
)
from baton.router.cluster_view.worker_table import Worker
from baton.router.sessions.answer_stream import AnswerStream
from baton.router.sessions.joined_starts import JOINS_MINOR, join_starts
from baton.rpc.channel_options import SESSION_OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.handshake import check_identity, check_version
from baton.rpc.lease import TICKS_PER_LEASE, Lease
from baton.rpc.streams import Outbox, check_cancelled, first_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionOptions:
    """Options that all sessions of a router have in common."""

    router_id: str
    lease_s: float  # silence for longer ends the session
    clock: Callable[[], float]  # monotonic, in seconds
    credentials: Credentials  # of this router
    step_times: DecodeStepTimes = field(
        default_factory=DecodeStepTimes
    )  # of all ranks; sessions add to it
    pace: StreamPace = field(default_factory=StreamPace)  # of all answers


class RankSession:
    """A connection to one rank that is made again after each loss, until it is closed.

    The requests on it fail with the connection.
    """

    def __init__(
        self,
        worker: Worker,
        options: SessionOptions,
        prefills: Callable[[], Sequence[WorkerIdentity]],
        on_change: Callable[[], None],
    ) -> None:
        """prefills: returns the prefill workers of the table.
        on_change: called when `ready` has changed.
        """
        self.worker = worker
        self.ready = False
        self._options = options
        self._prefills = prefills
        self._on_change = on_change
        self._streams: dict[str, AnswerStream] = {}
        self._by_handle: dict[int, AnswerStream] = {}
        self._reading: set[AnswerStream] = set()  # the rank computes their prompts
        self._handles = itertools.count(1)
        self._outbox: Outbox[RouterMessage] = Outbox()
        self._steps = StepClock(options.step_times)

    def start(self, message: RouterMessage, scored_to: int = 0) -> AnswerStream:
        """Send the request of a message. Its tokens, or why there are none, come out of the stream.

        scored_to: prompt positions below this were scored by an earlier attempt.
        """
        request = message.start
        stream = AnswerStream(
            request.request_id,
            request.attempt,
            self._options.clock,
            given=len(request.output_ids),
            scored_to=scored_to,
            pace=self._options.pace,
        )
        if not self.ready:
            stream.rank_done = True
            stream.fail(self._lost_error("its session is not connected"))
            return stream
        self._streams[request.request_id] = stream
        stream.handle = request.handle = next(self._handles)
        self._by_handle[stream.handle] = stream
        if request.prefill_here:
            self._reading.add(stream)
        self._outbox.put(message)
        return stream

    def end(self, stream: AnswerStream, reason: str) -> None:
        """Forget a stream that is no longer read; cancel its request if the rank still works on
        it.
        """
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
        self._by_handle.pop(stream.handle, None)
        self._reading.discard(stream)
        if not stream.rank_done and self.ready:
            cancel = CancelRequest(
                request_id=stream.request_id, attempt=stream.attempt, reason=reason
            )
            self._outbox.put(RouterMessage(cancel=cancel))

    def recall(self, stream: AnswerStream, *, computed: bool) -> None:
        """Ask the rank for a request, see `Recall`. If it gives it back, the stream ends."""
        if self._streams.get(stream.request_id) is stream and not stream.rank_done:
            recall = Recall(request_id=stream.request_id, attempt=stream.attempt, computed=computed)
            self._outbox.put(RouterMessage(recall=recall))

    def announce_prefills(self, prefills: Sequence[WorkerIdentity]) -> None:
        """Tell the rank of prefill workers, so that it connects before a request needs them.

        Does nothing while disconnected, because a new connection begins with all of them.
        """
        if self.ready and prefills:
            self._outbox.put(RouterMessage(prefills=Prefills(workers=prefills)))

    def close(self, reason: str) -> None:
        """Fail the requests, because the worker is gone. The caller cancels `run` before it
        yields.
        """
        self._fail_streams(reason)

    async def run(self) -> None:
        """Keep the session connected until the rank stops, or until cancelled."""
        try:
            while True:
                try:
                    await self._connect()
                    return
                except BatonError as lost:
                    log.warning("session with %s: %s", self.worker.worker_id, lost)
                    self._fail_streams(str(lost))
                check_cancelled()
                await asyncio.sleep(self._options.lease_s / TICKS_PER_LEASE)
        finally:
            self._fail_streams("its session is closed")

    async def _connect(self) -> None:
        """Run one connection, from Hello to the rank's last message. Raises PeerLostError for every
        other end.
        """
        dial = self._options.credentials.dial_worker
        async with dial(self.worker.identity, SESSION_OPTIONS) as channel:
            call = worker_pb2_grpc.RankStub(channel).Session()
            try:
                async with asyncio.timeout(self._options.lease_s):
                    rank = await self._exchange_hello(call)
                both = min(PROTOCOL_MINOR, rank.protocol_minor)
                await self._serve(call, joins=both >= JOINS_MINOR)
            except grpc.aio.AioRpcError as error:
                raise PeerLostError(
                    f"its stream broke: {error.code().name} {error.details()}"
                ) from error
            except asyncio.InvalidStateError as error:  # grpc.aio raises it for a finished call
                raise PeerLostError("its stream is closed") from error
            except TimeoutError as error:
                raise PeerLostError("it did not answer Hello within its lease") from error
            finally:
                call.cancel()

    async def _serve(self, call: grpc.aio.StreamStreamCall, *, joins: bool) -> None:
        """joins: the rank reads several requests from one message."""
        self._outbox = Outbox()
        self._steps = StepClock(self._options.step_times)
        lease = Lease(f"decode rank {self.worker.worker_id}", self._options.lease_s)
        self.ready = True
        self.announce_prefills(self._prefills())
        self._on_change()
        beats = itertools.count(1)
        await first_of(
            self._read(call, lease),
            self._outbox.drain(call.write, join_starts if joins else None),
            lease.watch(lambda: self._beat(next(beats))),
        )

    def _beat(self, sequence: int) -> None:
        self._outbox.put(RouterMessage(heartbeat=Heartbeat(sequence=sequence)))

    async def _exchange_hello(self, call: grpc.aio.StreamStreamCall) -> Hello:
        """Return the rank's Hello. Raises BatonError."""
        ours = Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            router_id=self._options.router_id,
        )
        await call.write(RouterMessage(hello=ours))
        message = await call.read()
        if message is grpc.aio.EOF or not message.HasField("hello"):
            raise PeerLostError("it did not begin with Hello")
        check_version(message.hello, "this router")
        greeting: Hello = message.hello
        check_identity(self.worker.identity, greeting.worker)
        return greeting

    async def _read(self, call: grpc.aio.StreamStreamCall, lease: Lease) -> None:
        streams = self._streams
        closing = False
        while True:
            message: RankMessage = await call.read()
            if message is grpc.aio.EOF:
                if closing:
                    return
                raise PeerLostError("it ended its stream")
            lease.heard()
            ended = []
            for tokens in message.requests:
                stream = streams.get(tokens.request_id)
                if stream is None:
                    continue
                if tokens.HasField("finished"):  # its last tokens may be among `step`
                    ended.append((stream, tokens))
                else:
                    stream.feed(tokens)
            if message.HasField("step"):
                self._feed_step(message.step, len(message.requests))
            for stream, tokens in ended:
                stream.feed(tokens)
            for answer in message.recalled:
                stream = streams.get(answer.request_id)
                if answer.returned and stream is not None and stream.attempt == answer.attempt:
                    stream.give_back()
            if message.closing:
                closing = True
                await call.done_writing()

    def _feed_step(self, step: StepTokens, others: int) -> None:
        """others: requests whose tokens are in the message, and not in `step`."""
        columns = list(step.handles), list(step.indices), list(step.token_ids)
        if len(set(map(len, columns))) != 1:
            raise PeerLostError("it sent a step whose lists differ in length")
        if self._reading:  # parts of their prompts make the steps of others longer
            self._steps.skip()
        else:
            self._steps.step(columns[0], others, self._options.clock())
        by_handle = self._by_handle
        for handle, index, token_id in zip(*columns, strict=True):
            stream = by_handle.get(handle)
            if stream is not None:
                stream.feed_token(index, token_id)
        if self._reading:
            self._reading = {each for each in self._reading if each.first_in is None}

    def _fail_streams(self, reason: str) -> None:
        was_ready, self.ready = self.ready, False
        for stream in self._streams.values():
            stream.rank_done = True
            stream.fail(self._lost_error(reason))
        self._streams.clear()
        self._by_handle.clear()
        self._reading.clear()
        if was_ready:
            self._on_change()

    def _lost_error(self, reason: str) -> ApiError:
        return ApiError(
            ErrorCode.UNAVAILABLE,
            f"decode rank {self.worker.worker_id} was lost: {reason}; send the request again",
            origin=self.worker.worker_id,
        )
