"""A router's backend before decode ranks in the same process, without sockets or heartbeats: the
frames that one request costs are the same each time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from fake_workers import tokens_of
from kit.polling import until_answered

from baton.api.answer_queue import StreamPace
from baton.api.backend import ModelInfo
from baton.core.supervised import ProcessSupervisor
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import RankMessage, RouterMessage, StartRequest, WorkerStatus
from baton.router.backend import RouterBackend
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.config import RouterConfig
from baton.router.metrics import RouterMetrics
from baton.router.sessions.rank_session import SessionOptions
from baton.rpc.credentials import Credentials

LEASE_S = 3600.0
"""Too long for a tick or a heartbeat while a test runs."""
GRID = 256
SETTINGS = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
            "mamba_checkpoint_grid": str(GRID), "chunked_prefill_size": "8192"}  # fmt: skip
MAX_RUNNING = 64
TOKEN = 40


class MemoryRank:
    """A rank, the channel to it and the session on it. A request's first token comes at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()
        self._running: dict[int, tuple[StartRequest, int]] = {}  # by handle, with tokens so far

    def step(self) -> None:
        """Send the next token of each request that runs, in one message."""
        message = RankMessage()
        for handle, (start, given) in list(self._running.items()):
            last = given + 1 == start.sampling.max_tokens
            if last:
                message.requests.append(tokens_of(start, [TOKEN], first_index=given, last=True))
                del self._running[handle]
                continue
            message.step.handles.append(handle)
            message.step.indices.append(given)
            message.step.token_ids.append(TOKEN)
            self._running[handle] = (start, given + 1)
        if message.requests or message.HasField("step"):
            self._send(message)

    def stream_stream(self, *_: object, **__: object) -> Callable[[], "MemoryRank"]:
        """Return what makes the session, as a gRPC channel does."""
        return lambda: self

    async def read(self) -> RankMessage:
        return RankMessage.FromString(await self._sent.get())

    async def write(self, message: RouterMessage) -> None:
        """Take a message of the router."""
        taken = RouterMessage.FromString(message.SerializeToString())
        match taken.WhichOneof("kind"):
            case "hello":
                self._send(RankMessage(hello=hello_of(self._name)))
            case "start":
                self._begin(taken.start)
            case "starts":
                for start in taken.starts.requests:
                    self._begin(start)

    async def done_writing(self) -> None:
        """Do nothing: the session ends with its test."""

    def cancel(self) -> None:
        """Do nothing: the session ends with its test."""

    def _begin(self, start: StartRequest) -> None:
        last = start.sampling.max_tokens == 1
        if not last:
            self._running[start.handle] = (start, 1)
        self._send(RankMessage(requests=[tokens_of(start, [TOKEN], last=last)]))

    def _send(self, message: RankMessage) -> None:
        self._sent.put_nowait(message.SerializeToString())


class MemoryRanks:
    """The credentials of a router that dials ranks of this process alone."""

    def __init__(self) -> None:
        self.dialled: list[MemoryRank] = []

    @asynccontextmanager
    async def dial_worker(self, worker: WorkerIdentity, _: object) -> AsyncIterator[MemoryRank]:
        self.dialled.append(MemoryRank(worker.worker_id))
        yield self.dialled[-1]


def hello_of(name: str) -> Hello:
    """Return the Hello of `prefill-N` or `decode-N`."""
    role, _, number = name.partition("-")
    identity = WorkerIdentity(
        worker_id=name, incarnation=1, address="memory:1", rank=int(number),
        role=PREFILL if role == "prefill" else DECODE,
    )  # fmt: skip
    return Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)


@asynccontextmanager
async def memory_router(
    model: ModelInfo, pairs: int = 1, ranks: MemoryRanks | None = None, **options: Any
) -> AsyncIterator[RouterBackend]:
    """Yield the backend of a router with so many prefill workers, and as many ranks that answer.

    ranks: where they are found once they are dialled. options: of `RouterConfig`.
    """
    loop, owner = asyncio.get_running_loop(), ProcessSupervisor()
    owner.use_running_loop()
    table = WorkerTable(LEASE_S, loop.time, model.max_model_len)
    backend = RouterBackend(
        RouterConfig(model=Path("memory"), **options),
        model,
        table,
        SessionOptions(
            "router-0/1",
            LEASE_S,
            loop.time,
            cast(Credentials, ranks or MemoryRanks()),
            pace=StreamPace(clock=lambda: 0.0),  # no pause: whether tokens are joined is no chance
        ),
        RouterMetrics(),
        lambda _: 1.0,
        owner,
    )
    for number in range(pairs):
        for role in ("prefill", "decode"):
            worker = table.register(hello_of(f"{role}-{number}"))
            status = WorkerStatus(
                max_running=MAX_RUNNING, settings=SETTINGS, prompt_token_us=30, decode_step_us=9e3
            )
            table.report(worker, status, leaving=False)

    async def ready() -> bool:
        workers = cast("list[dict[str, object]]", (await backend.server_info())["workers"])
        return all(worker["ready"] for worker in workers)

    try:
        await until_answered(ready)
        yield backend
    finally:
        await backend.stop()
        await owner.close()
