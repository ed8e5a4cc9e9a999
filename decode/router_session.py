"""The stream that one router holds to this rank."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from grpc import aio

from baton.core.errors import PeerSilentError
from baton.decode.rank_request import RankRequest
from baton.proto import common_pb2, worker_pb2
from baton.rpc.lease import Lease
from baton.rpc.streams import first_of

log = logging.getLogger(__name__)

LEAST_GAP_S = 0.002
"""Seconds between two messages. A message costs router and rank about 0.3 ms of CPU time, however
few tokens it has; steps that are shorter than this share one. Longer steps wait for nothing."""

Begin = Callable[[worker_pb2.StartRequest, "RouterSession"], RankRequest]
Introduced = Callable[[common_pb2.WorkerIdentity], None]


class _Step(NamedTuple):
    """The columns of a `StepTokens`: lists, because appending to a message's field costs more."""

    handles: list[int]
    indices: list[int]
    token_ids: list[int]


class RouterSession:
    """One router's stream and the requests that came over it. They end with the stream."""

    def __init__(
        self,
        router_id: str,
        lease_s: float,
        begin: Begin,
        introduced: Introduced,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """begin: makes the request for a StartRequest.

        introduced: called with prefill workers that requests may name later.
        """
        self._sleep = sleep
        self._begin = begin
        self._introduced = introduced
        self._lease = Lease(f"router {router_id}", lease_s)
        self._requests: dict[str, RankRequest] = {}
        self._pending = worker_pb2.RankMessage()
        self._step = _Step([], [], [])
        self._due = asyncio.Event()
        self._ended = False
        self._over = asyncio.Event()

    def add(self) -> worker_pb2.RequestTokens:
        """Add an empty part to the next message, for the caller to fill at once.

        One message carries all that is added before the writer's next turn: the tokens of all
        requests of a step, and of several steps if they are short or the router reads slowly.
        """
        if self._ended:
            return worker_pb2.RequestTokens()
        self._due.set()
        return self._pending.requests.add()

    def add_token(self, handle: int, index: int, token_id: int) -> None:
        """Add one token to the next message, by the handle that the router gave the request."""
        if self._ended:
            return
        handles, indices, token_ids = self._step
        if not handles:
            self._due.set()
        handles.append(handle)
        indices.append(index)
        token_ids.append(token_id)

    def add_recalled(self, request_id: str, attempt: int, *, returned: bool) -> None:
        """Answer a Recall in the next message, after all tokens that were added before."""
        if not self._ended:
            self._due.set()
            self._pending.recalled.add(request_id=request_id, attempt=attempt, returned=returned)

    def forget(self, request: RankRequest) -> None:
        """Drop a request that is over."""
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]

    async def close(self) -> None:
        """Wait until the router has read all that was added, and its stream has ended. The caller
        ends the requests before, so that their last messages are among it.
        """
        self._pending.closing = True
        self._due.set()
        await self._over.wait()

    async def serve(
        self, messages: AsyncIterator[worker_pb2.RouterMessage], context: aio.ServicerContext
    ) -> None:
        """Answer the router until its stream ends or it is silent for its lease.

        The requests that are left are then cancelled.
        """
        reason = "the router went away"
        try:
            await first_of(self._read(messages), self._write(context), self._lease.watch())
        except PeerSilentError as silent:
            reason = str(silent)
            log.warning("%s", silent)
        finally:
            self._ended = True
            for request in list(self._requests.values()):
                request.cancel(reason)
            self._over.set()

    async def _read(self, messages: AsyncIterator[worker_pb2.RouterMessage]) -> None:
        async for message in messages:
            self._lease.heard()
            match message.WhichOneof("kind"):
                case "start":
                    self._start(message.start)
                case "starts":
                    for start in message.starts.requests:
                        self._start(start)
                case "cancel":
                    self._cancel(message.cancel)
                case "recall":
                    self._recall(message.recall)
                case "prefills":
                    for worker in message.prefills.workers:
                        self._introduced(worker)
                case "heartbeat":
                    self._pending.heartbeat.CopyFrom(message.heartbeat)
                    self._due.set()

    async def _write(self, context: aio.ServicerContext) -> None:
        clock = asyncio.get_running_loop().time
        earliest = clock()
        while True:
            await self._due.wait()
            if (early_s := earliest - clock()) > 0:
                await self._sleep(early_s)
            earliest = clock() + LEAST_GAP_S
            self._due.clear()
            await context.write(self._take())

    def _take(self) -> worker_pb2.RankMessage:
        """Return all that was added, as one message."""
        message, self._pending = self._pending, worker_pb2.RankMessage()
        if self._step.handles:
            step, self._step = self._step, _Step([], [], [])
            message.step.handles.extend(step.handles)
            message.step.indices.extend(step.indices)
            message.step.token_ids.extend(step.token_ids)
        return message

    def _start(self, start: worker_pb2.StartRequest) -> None:
        earlier = self._requests.get(start.request_id)
        if earlier is not None and earlier.attempt >= start.attempt:
            log.warning(
                "request %s/%d was sent twice; the second is ignored",
                start.request_id,
                start.attempt,
            )
            return
        if earlier is not None:
            earlier.cancel("the router sent a later attempt")
        request = self._begin(start, self)
        self._requests[request.request_id] = request
        request.begin()

    def _cancel(self, cancel: worker_pb2.CancelRequest) -> None:
        request = self._requests.get(cancel.request_id)
        if request is not None and request.attempt == cancel.attempt:
            request.cancel(cancel.reason)

    def _recall(self, recall: worker_pb2.Recall) -> None:
        request = self._requests.get(recall.request_id)
        if request is None or request.attempt != recall.attempt:
            return  # its end is on the way
        if not request.recall(computed=recall.computed):
            self.add_recalled(recall.request_id, recall.attempt, returned=False)
