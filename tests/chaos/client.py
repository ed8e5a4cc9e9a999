"""A router's part towards a rank, in the test's process: requests, cancels, replay after a loss."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from certificates import router
from chaos.node import DEADLINE_S, Node
from grpc import aio

from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.rpc.channel_options import OPTIONS
from baton.rpc.convert import sampling_to_proto

OWN_FAULT = "this process was held up"
_ids = itertools.count(1)


def new_request_id() -> str:
    return f"{next(_ids):032x}"


class Reply:
    """One attempt's tokens, and how it ended."""

    def __init__(self, given: Sequence[int] = ()) -> None:
        self.token_ids: list[int] = []
        self.finished: common_pb2.Finished | None = None
        self.lost: str | None = None  # the rank is gone, and why
        self._given = len(given)
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        return self.finished is not None or self.lost is not None

    @property
    def lost_by_us(self) -> bool:
        """It was this process that kept silent."""
        return self.lost is not None and OWN_FAULT in self.lost

    @property
    def silenced(self) -> bool:
        """The rank says that its prefill worker did not answer."""
        return self.finished is not None and self.finished.error.code == common_pb2.UNAVAILABLE

    @property
    def whole(self) -> bool:
        """All of it came."""
        return self.finished is not None and self.finished.reason == common_pb2.LENGTH

    def feed(self, tokens: worker_pb2.RequestTokens) -> None:
        assert not self.over, "something came after the end"
        assert tokens.first_index == self._given + len(self.token_ids), "a gap, or a repetition"
        self.token_ids += tokens.token_ids
        if tokens.HasField("finished"):
            self.finished = tokens.finished
        self._changed.set()

    def lose(self, why: str) -> None:
        if not self.over:
            self.lost = why
            self._changed.set()

    async def until(self, true: Callable[["Reply"], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not true(self):
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> "Reply":
        await self.until(lambda reply: reply.over)
        return self


class RankClient:
    """A router's session with one rank."""

    def __init__(self, call: Any, beat_s: float) -> None:
        self._call = call
        self._beat_s = beat_s
        self._replies: dict[str, Reply] = {}
        self._writing = asyncio.Lock()
        self._latest_s = 0.0  # the longest that a heartbeat came late
        self.lost: str | None = None
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._beat())]

    async def start(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        prefills: Sequence[Node],
        *,
        attempt: int = 1,
        outputs: Sequence[int] = (),
        state_at: common_pb2.StateAt | None = None,
    ) -> Reply:
        reply = Reply(outputs)
        if self.lost is not None:
            reply.lose(self.lost)
            return reply
        self._replies[request_id] = reply
        start = worker_pb2.StartRequest(
            request_id=request_id,
            attempt=attempt,
            prompt_ids=prompt,
            output_ids=outputs,
            sampling=sampling_to_proto(sampling),
            prefills=[node.identity for node in prefills],
            state_at=state_at,
        )
        await self._write(worker_pb2.RouterMessage(start=start))
        return reply

    async def cancel(self, request_id: str, attempt: int = 1) -> None:
        cancel = worker_pb2.CancelRequest(
            request_id=request_id, attempt=attempt, reason="the client left"
        )
        await self._write(worker_pb2.RouterMessage(cancel=cancel))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        self._lose("the test closed the session")

    async def _write(self, message: worker_pb2.RouterMessage) -> None:
        try:
            async with self._writing:  # gRPC allows one write at a time
                await self._call.write(message)
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._lose(f"{type(error).__name__}: {error}")

    async def _read(self) -> None:
        try:
            while (message := await self._call.read()) is not aio.EOF:
                for tokens in message.requests:
                    reply = self._replies[tokens.request_id]
                    reply.feed(tokens)
                    if reply.over:
                        del self._replies[tokens.request_id]
            self._lose("the rank ended the stream")
        except aio.AioRpcError as error:
            self._lose(f"{error.code().name}: {error.details()}")

    async def _beat(self) -> None:
        for sequence in itertools.count(1):
            beat = worker_pb2.RouterMessage()
            beat.heartbeat.sequence = sequence
            await self._write(beat)
            began = time.monotonic()
            await asyncio.sleep(self._beat_s)  # the beat
            self._latest_s = max(self._latest_s, time.monotonic() - began - self._beat_s)

    def _lose(self, why: str) -> None:
        # On a full machine this process may have been silent for its own lease.
        own = f"; {OWN_FAULT}" if self._latest_s > self._beat_s else ""
        self.lost = self.lost or why + own
        for reply in self._replies.values():
            reply.lose(self.lost)
        self._replies.clear()


@asynccontextmanager
async def session(rank: Node) -> AsyncIterator[RankClient]:
    async with router().dial_worker(rank.identity, OPTIONS) as channel:
        call = worker_pb2_grpc.RankStub(channel).Session()
        hello = common_pb2.Hello(
            protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, router_id="router-0/chaos"
        )
        await call.write(worker_pb2.RouterMessage(hello=hello))
        async with asyncio.timeout(DEADLINE_S):
            first = await call.read()
        assert first.hello.worker == rank.identity
        client = RankClient(call, rank.plan.lease_ms / 4000)
        try:
            yield client
        finally:
            client.close()
