"""The test's end of one worker process."""

import asyncio
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

from chaos.fault_point import Act, Point
from chaos.node_main import Books, NodePlan, Weight, main
from chaos.pull_point import Moment
from kit.polling import until_answered

from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

DEADLINE_S = 60.0
"""The deadline of every wait in a test: far above what any takes, met only where something hangs.
"""

_context = multiprocessing.get_context("forkserver")


def start_nursery() -> None:
    """The process that workers are forked from, with all that they import: a new life then takes
    a moment. (The fork server of Python 3.11 does not pass `sys.path` on to what it preloads.)"""
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        _context.set_forkserver_preload(["chaos.node_main"])
        forkserver.ensure_running()
    finally:
        if kept is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = kept


@dataclass(frozen=True)
class Move:
    request_id: str
    attempt: int
    state: HandoffState


class NodeGone(Exception):
    """The process has ended; what it was asked will not be answered."""


class Node:
    """Made by `start`, on the loop that uses it."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.name = plan.name
        self.moves: list[Move] = []
        self.reached = asyncio.Event()  # it stands at its fault point, or has died of it
        self.identity = common_pb2.WorkerIdentity()
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._pid = 0  # once it has started

    async def start(self) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=main, args=(theirs, self.plan), daemon=True)
        await asyncio.to_thread(self._process.start)
        theirs.close()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)
        async with asyncio.timeout(DEADLINE_S):
            await self._started

    @property
    def address(self) -> str:
        return self.identity.address

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """It runs no instruction until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def end(self) -> None:
        """Gone when it returns, whatever state it was in."""
        if not self.gone.is_set():
            self.kill()
        async with asyncio.timeout(DEADLINE_S):
            await self.gone.wait()
        await asyncio.to_thread(self._process.join)

    async def arm(self, request_id: str, state: HandoffState, act: Act) -> None:
        self.reached.clear()
        await self.ask("arm", Point(request_id, state, act))

    async def arm_pull(self, moment: Moment, act: Act) -> None:
        """Arm a fault in the next prefix that it reads from another worker."""
        self.reached.clear()
        await self.ask("arm_pull", moment, act)

    def go(self) -> None:
        """Let the worker go on from its fault point; a stopped worker does so once it is
        resumed."""
        self._pipe.send((0, "go", ()))

    async def books(self) -> Books:
        found: Books = await self.ask("books")
        return found

    async def weigh(self) -> Weight:
        found: Weight = await self.ask("weigh")
        return found

    async def ask(self, name: str, *values: object) -> Any:
        """Raises NodeGone."""
        if self.gone.is_set():
            raise NodeGone(self.name)
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._pipe.send((number, name, values))
        except OSError as error:
            raise NodeGone(self.name) from error
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def until(self, true: Callable[["Node"], bool], what: str) -> None:
        """Wait for its moves to make `true` true."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not true(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name}: never {what}") from None

    def states_of(self, request_id: str) -> list[HandoffState]:
        return [move.state for move in self.moves if move.request_id == request_id]

    async def settled(self, *, quarantine: bool = False) -> Books:
        """Wait until it owns nothing but its cache and has nothing under way; audit each time.
        quarantine: there may be memory that waits for a proof."""
        last: Books | None = None

        async def settled() -> Books | None:
            nonlocal last
            last = await self.books()
            if last.settled and (quarantine or not last.quarantined):
                return last
            assert not last.findings, f"{self.name}: {last.findings}"
            return None

        return await until_answered(settled, lambda: f"{self.name} still has {last}")

    def _signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def _read(self) -> None:
        try:
            what, *values = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._lost()
            return
        match what:
            case "moved":
                self.moves.append(Move(*values))
                self._changed.set()
            case "reached":
                self.reached.set()
            case "answer":
                number, answer = values
                future = self._answers.pop(number)
                if not future.done():
                    future.set_result(answer)
            case "started":
                _, identity, self._pid = values
                self.identity.ParseFromString(identity)
                self._started.set_result(None)

    def _lost(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._pipe.close()
        self.gone.set()
        for future in (self._started, *self._answers.values()):
            if not future.done():
                future.set_exception(NodeGone(self.name))
        self._answers.clear()
