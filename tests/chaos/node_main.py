"""A worker in a process of its own, as a test starts it: the product's runtime over a hash model,
and a pipe to the test."""

import asyncio
import ctypes
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import uvloop
from chaos import netns, pidns
from chaos.ballast_model import BallastModel
from chaos.fault_point import FaultPoint
from chaos.pull_point import PullPoint
from chaos.pulse import Pulse
from chaos.reissue import Reissue
from chaos.spoiler import Spoiler
from engine.engines import make_engine

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.decode.service import DecodeService
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.prefill.service import PrefillService
from baton.transfer.handoff import HandoffState
from baton.worker.config import WorkerConfig
from baton.worker.runtime import WorkerRuntime

KEPT = (Owner.FREE, Owner.CACHE)
QUARANTINED = {f"{what} {Owner.QUARANTINE}" for what in ("slots", "pages")}


@dataclass(frozen=True)
class NodePlan:
    """Everything that a worker's process is told. Pickled."""

    name: str
    role: Role
    host: str
    lease_ms: int
    channel: str
    credentials: Path | None = None
    netns: str | None = None
    apart: bool = False  # in a pid namespace of its own
    env: dict[str, str] = field(default_factory=dict)
    moves: bool = True  # tell of every move
    ballast_kib: int = 2048
    options: dict[str, Any] = field(default_factory=dict)  # further ones of `WorkerConfig`


@dataclass(frozen=True)
class Books:
    """The resources that a worker owns, and the work that it has under way."""

    findings: list[str]
    owned: dict[str, int]  # slots and pages by owner, but free and cached ones
    handoffs: dict[str, int]
    busy: int
    requests: int  # that the engine knows
    polled: int  # ends of channels that its poller looks at again and again

    @property
    def settled(self) -> bool:
        """True if nothing is owned or under way, except for what is in quarantine."""
        owned = {owner for owner in self.owned if owner not in QUARANTINED}
        moving = {state for state in self.handoffs if state != HandoffState.QUARANTINED}
        working = self.busy or self.requests or self.polled
        return not (self.findings or owned or moving or working)

    @property
    def quarantined(self) -> int:
        """Hand-offs whose memory waits for the proof that nobody writes there any more."""
        return self.handoffs.get(HandoffState.QUARANTINED, 0)


@dataclass(frozen=True)
class Weight:
    """The resources of a worker's process."""

    fds: int
    threads: int
    tasks: int
    objects: int  # that Python's collector knows
    rss: int  # bytes


def main(conn: Connection, plan: NodePlan) -> None:
    os.environ.pop("UCX_NET_DEVICES", None)  # an agent in the test's process has set it
    os.environ.update(plan.env)
    if plan.apart:
        pidns.enter(conn)
    pid = pidns.pid_in_proc()
    if plan.apart:
        pidns.mount_proc()
    if plan.netns is not None:
        netns.enter(plan.netns)
    uvloop.run(Node(conn, plan, pid).run())


class Node:
    """Commands come in by name, on a thread; each is answered once, on the loop."""

    def __init__(self, conn: Connection, plan: NodePlan, pid: int) -> None:
        """pid: as the test knows this process."""
        self._conn = conn
        self._plan = plan
        self._pid = pid
        self._sending = threading.Lock()
        self._ended = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        self._engine = make_engine(BallastModel(plan.ballast_kib), tickets=4)
        self._service: Any = None
        self._context: Any = None
        self._reissue: Reissue | None = None
        self._spoiler: Spoiler | None = None
        self._pulse = Pulse()

    async def run(self) -> None:
        plan = self._plan
        config = WorkerConfig(
            plan.name,
            plan.role,
            self._engine.config,
            host=plan.host,
            lease_ms=plan.lease_ms,
            channel=plan.channel,
            credentials=plan.credentials,
            **plan.options,
        )
        runtime = WorkerRuntime(config, self._engine, self._make_role, ProcessSupervisor())
        started = await runtime.start()
        pulse = asyncio.ensure_future(self._pulse.beat())
        threading.Thread(
            target=self._listen, args=(asyncio.get_running_loop(),), daemon=True
        ).start()
        identity = self._context.hello.worker.SerializeToString()
        self._tell("started", started, identity, self._pid)
        await self._ended.wait()
        pulse.cancel()
        await runtime.stop(0.0)

    def _make_role(self, context: Any) -> Any:
        self._context = context
        self._point = FaultPoint(context.handoffs, self._tell, moves=self._plan.moves)
        prefills = self._plan.role is Role.PREFILL
        self._service = PrefillService(context) if prefills else DecodeService(context)
        self._pull_point = PullPoint(self._service._prefixes.fetcher._reader, self._tell)
        if not prefills:
            self._reissue = Reissue(self._engine, context.port, self._service)
            self._spoiler = Spoiler(context.memory, self._service)
        return self._service

    def _tell(self, what: str, *values: object) -> None:
        with self._sending:
            self._conn.send((what, *values))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                number, name, values = self._conn.recv()
                if name == "go":  # the loop may stand at its point
                    self._point.go()
                    self._pull_point.go()
                else:
                    loop.call_soon_threadsafe(self._handle, number, name, values)
        except EOFError:  # the test is gone
            os._exit(0)

    def _handle(self, number: int, name: str, values: tuple[Any, ...]) -> None:
        answer = self._answer(number, getattr(self, f"do_{name}"), values)
        task = asyncio.ensure_future(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, do: Callable[..., Any], values: tuple[Any, ...]) -> None:
        self._tell("answer", number, await do(*values))

    # What a test may ask.

    async def do_arm(self, *points: Any) -> None:
        self._point.arm(*points)

    async def do_arm_pull(self, *point: Any) -> None:
        self._pull_point.arm(*point)

    async def do_flush(self) -> bool:
        """Free the prefix cache. Returns False where something of it is lent."""
        return bool(await self._context.port.call(Engine.flush_cache))

    async def do_fetches(self) -> dict[str, int]:
        """Return the prefix fetches of this life by outcome."""
        samples = self._context.metrics.registry.collect()
        return {
            sample.labels["outcome"]: int(sample.value)
            for metric in samples
            for sample in metric.samples
            if sample.name == "baton_worker_prefix_fetches_total"
        }

    async def do_disarm(self) -> None:
        self._point.disarm()

    async def do_held_up(self) -> float:
        """Return the longest time in seconds for which the machine held this process up since the
        last call."""
        return self._pulse.take_s()

    async def do_hold(self) -> None:
        assert self._spoiler is not None
        self._spoiler.hold()

    async def do_held(self) -> bool:
        assert self._spoiler is not None
        return self._spoiler.holds

    async def do_let_go(self) -> None:
        assert self._spoiler is not None
        await self._spoiler.let_go()

    async def do_spoil(self) -> None:
        assert self._spoiler is not None
        self._spoiler.spoil()

    async def do_end(self) -> None:
        self._ended.set()

    async def do_weigh(self) -> Weight:
        """Return the process's resources, without what the prefix cache keeps."""
        await self._context.port.call(Engine.flush_cache)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        process = psutil.Process()
        return Weight(
            process.num_fds(),
            process.num_threads(),
            len(asyncio.all_tasks()),
            len(gc.get_objects()),
            process.memory_info().rss,
        )

    async def do_reissue(self, request_id: str) -> bool:
        assert self._reissue is not None
        return await self._reissue.take(request_id)

    async def do_intact(self) -> bool:
        assert self._reissue is not None
        return await self._reissue.give_back()

    async def do_books(self) -> Books:
        findings, status, requests = await self._context.port.call(_look)
        return Books(
            findings,
            {
                f"{what} {owner}": count
                for what, owned in (("slots", status.slots), ("pages", status.pages))
                for owner, count in owned.items()
                if count and owner not in KEPT
            },
            self._context.handoffs.counts,
            self._service.busy,
            requests,
            len(self._context.poller._polled),
        )


def _look(engine: Engine) -> tuple[list[str], Any, int]:
    known = len(list(engine._requests)) + len(engine.reservations)
    return engine.audit(), engine.status(), known
