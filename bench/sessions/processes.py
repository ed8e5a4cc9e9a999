"""The processes of `baton bench sessions`: routers as they are, and canned ranks."""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from baton.bench.sessions.canned_rank import CannedRank, hello_of, stay_registered
from baton.core.errors import PeerLostError
from baton.core.process_end import ending_owner
from baton.core.supervised import child as child_task
from baton.deploy.process.tuning import keep_what_is_loaded, switch_often
from baton.proto import common_pb2
from baton.router.actor import RouterActor
from baton.router.config import RouterConfig
from baton.router.server import RouterStarted
from baton.rpc.credentials import Credentials

START_S = 120.0
STOP_S = 30.0


@dataclass(frozen=True)
class RankPlan:
    """The ranks of one process: a folder of credentials each, by worker id."""

    prefill: tuple[str, Path]
    ranks: tuple[tuple[str, Path], ...]
    routers: tuple[str, ...]  # internal addresses; each rank joins all of them
    step_s: float
    eager: bool = False  # their first tokens come at once


class Child:
    """A process that answers each message on its pipe with one, until the pipe is closed."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self._connection = connection
        self.first: Any = self._answer()
        """The answer to its start."""

    def ask(self, question: str) -> Any:
        """Ask and return the answer. Raises PeerLostError after `START_S`."""
        self._connection.send(question)
        return self._answer()

    def _answer(self) -> Any:
        try:
            if self._connection.poll(START_S):
                return self._connection.recv()
        except EOFError as error:
            raise PeerLostError(f"process {self.pid} of the benchmark has ended") from error
        raise PeerLostError(f"process {self.pid} of the benchmark did not answer")


@contextmanager
def child(target: Callable[[Connection, Any], None], given: object) -> Iterator[Child]:
    """Run `target(pipe, given)` in a process of its own; it ends when its pipe is closed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, given), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield Child(process.pid, ours)
    finally:
        ours.close()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def route(pipe: Connection, config: RouterConfig) -> None:
    """Serve as a router. Answers its start with `RouterStarted`, and each question with the names
    of its Python threads by their native id."""
    switch_often()
    router = RouterActor(config, ending_owner())
    started: RouterStarted = router.start()
    keep_what_is_loaded()
    pipe.send(started)
    try:
        while pipe.recv():
            pipe.send({each.native_id: each.name for each in threading.enumerate()})
    except EOFError:
        router.stop(0.0)


def play_ranks(pipe: Connection, plan: RankPlan) -> None:
    """Serve as ranks. Answers its start with their number, and each question with the number of
    messages that they have sent."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_ranks(pipe, plan))


async def _ranks(pipe: Connection, plan: RankPlan) -> None:
    ranks = [
        CannedRank(number, Credentials(folder), plan.step_s, plan.eager)
        for number, (_, folder) in enumerate(plan.ranks)
    ]
    for rank in ranks:
        await rank.start()
    name, folder = plan.prefill
    prefill = hello_of(name, common_pb2.PREFILL, "127.0.0.1:1", 0)
    joining = [(prefill, Credentials(folder)), *((rank.hello, rank.credentials) for rank in ranks)]
    registered = [
        child_task(stay_registered(router, hello, credentials))
        for hello, credentials in joining
        for router in plan.routers
    ]
    pipe.send(len(ranks))
    try:
        while await asyncio.to_thread(pipe.recv):
            pipe.send(sum(rank.sent for rank in ranks))
    except EOFError:
        pass
    finally:
        for each in registered:
            each.cancel()
        await asyncio.gather(*registered, return_exceptions=True)
        await asyncio.gather(*(rank.stop() for rank in ranks))


def worker_names(count: int) -> Sequence[str]:
    """Return the ids of the canned ranks."""
    return [f"decode-{number}" for number in range(count)]
