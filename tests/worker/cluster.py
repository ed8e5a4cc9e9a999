"""Prefill and decode workers over hash-model engines, in one process and on one loop, with real
gRPC between them, and a client that speaks to a rank as a router does."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from certificates import folder_of, router
from engine.engines import make_engine
from engine.hash_model import HashModel
from grpc import aio
from kit.polling import until, until_answered

from baton.core.role import Role
from baton.core.sampling_params import SamplingParams
from baton.core.supervised import ProcessSupervisor
from baton.decode.service import DecodeService
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.prefill.service import PrefillService
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.rpc.channel_options import OPTIONS
from baton.rpc.convert import sampling_to_proto
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.handoff import HandoffState
from baton.worker.config import WorkerConfig
from baton.worker.runtime import WorkerRuntime, WorkerStarted

DEADLINE_S = 60.0
"""The deadline of every wait in a test. Long: it is only met where something hangs, on the slowest
machine."""


class Gate:
    """Lets forwards through: all, none, or so many."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._left: float = float("inf")
        self.waiting = False  # a forward stands before it

    def open(self) -> None:
        self.allow(float("inf"))

    def allow(self, forwards: float) -> None:
        with self._condition:
            self._left = forwards
            self._condition.notify_all()

    def pass_through(self) -> None:
        with self._condition:
            self.waiting = True
            assert self._condition.wait_for(lambda: self._left > 0, DEADLINE_S)
            self.waiting = False
            self._left -= 1


class GatedModel(HashModel):
    """A test stops a hand-off in the state that it wants by holding up forwards."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = Gate()

    def forward(self, *args: Any) -> Any:
        self.gate.pass_through()
        return super().forward(*args)


class TestWorker:
    """A worker whose engine and state machine a test can look into."""

    __test__ = False

    def __init__(
        self,
        worker_id: str,
        role: Role,
        *,
        lease_ms: int = 30_000,
        channel: str = "grpc",
        hub: LocalHub | None = None,
        worker: dict[str, Any] | None = None,
        loaded: Engine | None = None,
        **engine: Any,
    ) -> None:
        """worker: other fields of WorkerConfig. loaded: the engine, which the caller closes; None:
        one of `engine`, which is what `make_engine` takes."""
        self.model = engine.pop("model", None) or GatedModel()
        if role is Role.DECODE:
            engine.setdefault("tickets", 4)
        self.engine: Engine = loaded or make_engine(self.model, **engine)
        config = WorkerConfig(
            worker_id,
            role,
            self.engine.config,
            lease_ms=lease_ms,
            channel=channel,
            **{"credentials": folder_of(role.value, worker_id)} | (worker or {}),
        )
        make_role = PrefillService if role is Role.PREFILL else DecodeService
        self.owner = ProcessSupervisor()
        self.runtime = WorkerRuntime(config, self.engine, self._keep(make_role), self.owner, hub)
        self.started: WorkerStarted
        self.service: Any
        self.context: Any
        self.moves: list[tuple[HandoffState, HandoffState]] = []
        self._moved = asyncio.Event()
        self._stopping: asyncio.Future[None] | None = None

    def _keep(self, make_role: Callable[..., Any]) -> Callable[..., Any]:
        def make(context: Any) -> Any:
            count_move = context.metrics.transfers.count_move

            def counted(source: HandoffState, to: HandoffState) -> None:
                self.moves.append((source, to))
                self._moved.set()
                count_move(source, to)

            context.metrics.transfers.count_move = counted
            self.context = context
            self.service = make_role(context)
            return self.service

        return make

    def been_in(self, state: HandoffState) -> int:
        """Return the number of hand-offs that entered `state`."""
        return sum(to is state for _, to in self.moves)

    async def start(self) -> None:
        self.started = await self.runtime.start()

    async def stop(self) -> None:
        """Stop the worker at once. Idempotent."""
        self.model.gate.open()
        await asyncio.shield(self.stop_soon(0.0))

    def stop_soon(self, grace_s: float) -> "asyncio.Future[None]":
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self.runtime.stop(grace_s))
        return self._stopping

    @property
    def identity(self) -> common_pb2.WorkerIdentity:
        return self.context.hello.worker

    async def reached(self, state: HandoffState, times: int = 1) -> None:
        """Wait until hand-offs have come into `state` that often."""
        async with asyncio.timeout(DEADLINE_S):
            while self.been_in(state) < times:
                self._moved.clear()
                await self._moved.wait()

    async def opened(self, count: int) -> None:
        """Wait until so many hand-offs are in the book here."""
        await until(lambda: sum(self.context.handoffs.counts.values()) >= count)

    async def blocked(self) -> None:
        """Wait until the engine's thread stands at the gate."""
        await until(lambda: self.model.gate.waiting)

    async def step_until(self, true: Callable[[], Any]) -> None:
        """Let its steps through one by one until it is so; the gate is closed, and opens then.
        Between two of them the engine does what it was asked to meanwhile."""
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.model.gate.waiting = False
                self.model.gate.allow(1)
                await self.blocked()
        self.model.gate.open()

    async def clean(self) -> None:
        """Wait until nothing is under way here; then the books must balance and all be free."""
        left: Any = None

        async def nothing_is_left() -> bool:
            nonlocal left
            left = await self._left()
            return left is None

        await until_answered(nothing_is_left, lambda: f"{self.context.worker_id} still has {left}")

    async def _left(self) -> Any:
        """Return what is still under way or owned; None when there is nothing."""
        findings = await self.context.port.call(Engine.audit)
        assert not findings, findings
        status = await self.context.port.call(Engine.status)
        owned = [owner for owned in (status.slots, status.pages) for owner, n in owned.items()
                 if n and owner not in (Owner.FREE, Owner.CACHE)]  # fmt: skip
        counts = self.context.handoffs.counts
        return (owned, counts, self.service.busy) if owned or counts or self.service.busy else None


@dataclass
class Answer:
    """One request's replies, as they came."""

    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[common_pb2.TokenLogprob] = field(default_factory=list)
    logprobs: list[common_pb2.TokenLogprob] = field(default_factory=list)
    messages: list[worker_pb2.RequestTokens] = field(default_factory=list)
    finished: common_pb2.Finished | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    given: int = 0  # output ids that the request came with

    def feed(self, tokens: worker_pb2.RequestTokens) -> None:
        assert self.finished is None, "something came after the end"
        assert tokens.first_index == self.given + len(self.token_ids)
        self.messages.append(tokens)
        self.token_ids += tokens.token_ids
        self.logprobs += tokens.logprobs
        self.prompt_logprobs += tokens.prompt_logprobs.tokens
        if tokens.HasField("finished"):
            self.finished = tokens.finished
        self.changed.set()

    async def until(self, ready: Callable[["Answer"], Any]) -> "Answer":
        async with asyncio.timeout(DEADLINE_S):
            while not ready(self):
                self.changed.clear()
                await self.changed.wait()
        return self

    async def end(self) -> common_pb2.Finished:
        await self.until(lambda answer: answer.finished is not None)
        assert self.finished is not None
        return self.finished


class RouterClient:
    """A session with one rank."""

    _ids = itertools.count(1)

    def __init__(self, call: Any) -> None:
        self.call = call
        self.answers: dict[str, Answer] = {}
        self.recalled: asyncio.Queue[worker_pb2.Recalled] = asyncio.Queue()
        self.beats: list[int] = []
        self.sizes: list[int] = []  # distinct requests in each message
        self.begun: list[str] = []  # requests, in the order of their first tokens
        self.decoded: list[str] = []  # and of their second ones
        self._writing = asyncio.Lock()
        self._reader = asyncio.ensure_future(self._read())

    async def start(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        prefills: Sequence[TestWorker | common_pb2.WorkerIdentity],
        outputs: tuple[int, ...] = (),
        raw_sampling: common_pb2.SamplingParams | None = None,
        state_at: common_pb2.StateAt | None = None,
        priority: int = 0,
        cache_salt: bytes = b"",
        again: str | None = None,
        junctions: tuple[int, ...] = (),
        prefill_here: bool = False,
        prediction_ids: tuple[int, ...] = (),
        draft_scope: bytes = b"",
    ) -> tuple[str, Answer]:
        """again: the request whose second attempt this is."""
        request_id = again or f"{next(self._ids):032x}"
        answer = self.answers[request_id] = Answer(given=len(outputs))
        start = worker_pb2.StartRequest(
            request_id=request_id,
            attempt=1 if again is None else 2,
            prompt_ids=prompt,
            output_ids=outputs,
            sampling=raw_sampling or sampling_to_proto(sampling),
            state_at=state_at,
            priority=priority,
            cache_salt=cache_salt,
            prediction_ids=prediction_ids,
            draft_scope=draft_scope,
            junctions=junctions,
            prefill_here=prefill_here,
            prefills=[p if isinstance(p, common_pb2.WorkerIdentity) else p.identity
                      for p in prefills],
        )  # fmt: skip
        await self.write(worker_pb2.RouterMessage(start=start))
        return request_id, answer

    async def cancel(self, request_id: str, reason: str = "the client left") -> None:
        cancel = worker_pb2.CancelRequest(request_id=request_id, attempt=1, reason=reason)
        await self.write(worker_pb2.RouterMessage(cancel=cancel))

    async def recall(self, request_id: str, *, computed: bool) -> bool:
        """Return the rank's answer: whether it has given the first attempt back."""
        recall = worker_pb2.Recall(request_id=request_id, attempt=1, computed=computed)
        await self.write(worker_pb2.RouterMessage(recall=recall))
        async with asyncio.timeout(DEADLINE_S):
            answer = await self.recalled.get()
        assert (answer.request_id, answer.attempt) == (request_id, 1)
        return answer.returned

    async def write(self, message: worker_pb2.RouterMessage) -> None:
        async with self._writing:  # gRPC allows one write at a time
            await self.call.write(message)

    async def _read(self) -> None:
        while (message := await self.call.read()) is not aio.EOF:
            self.sizes.append(len({tokens.request_id for tokens in message.requests}))
            for tokens in message.requests:
                self.answers[tokens.request_id].feed(tokens)
                for position, order in ((0, self.begun), (1, self.decoded)):
                    if position in range(
                        tokens.first_index, tokens.first_index + len(tokens.token_ids)
                    ):
                        order.append(tokens.request_id)
            for answer in message.recalled:
                self.recalled.put_nowait(answer)
            if message.HasField("heartbeat"):
                self.beats.append(message.heartbeat.sequence)

    def close(self) -> None:
        self._reader.cancel()
        self.call.cancel()


@asynccontextmanager
async def running(*workers: TestWorker) -> AsyncIterator[None]:
    """All serving inside; after, the books of those still alive balance."""
    async with AsyncExitStack() as stack:
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        yield


@asynccontextmanager
async def session(rank: TestWorker, lease_s: float = 0.5) -> AsyncIterator[RouterClient]:
    """A router's stream to `rank`, heartbeats included."""
    async with router().dial_worker(rank.identity, OPTIONS) as channel:
        # On a full machine one attempt to connect can take too long, and another follows.
        call = worker_pb2_grpc.RankStub(channel).Session(wait_for_ready=True)
        hello = common_pb2.Hello(
            protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, router_id="router-0/r0"
        )
        async with asyncio.timeout(DEADLINE_S):
            await call.write(worker_pb2.RouterMessage(hello=hello))
            first = await call.read()
        assert first.hello.worker == rank.identity
        client = RouterClient(call)

        async def beat() -> None:
            for sequence in itertools.count(1):
                beat = worker_pb2.RouterMessage()
                beat.heartbeat.sequence = sequence
                await client.write(beat)
                await asyncio.sleep(lease_s / 4)  # the beat

        beating = asyncio.ensure_future(beat())
        try:
            yield client
        finally:
            beating.cancel()
            client.close()


async def metrics_of(worker: TestWorker) -> str:
    """Return a worker's metrics as its router gets them."""
    async with router().dial_worker(worker.identity, OPTIONS) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        reply = await stub.Metrics(worker_pb2.MetricsRequest(), timeout=DEADLINE_S)
    text: str = reply.text.decode()
    return text


def prefill_worker(name: str = "p0", **options: Any) -> TestWorker:
    return TestWorker(name, Role.PREFILL, **options)


def decode_worker(name: str = "d0", **options: Any) -> TestWorker:
    return TestWorker(name, Role.DECODE, **options)


def with_seed(sampling: SamplingParams, seed: int) -> SamplingParams:
    return replace(sampling, seed=seed)
