"""The leader's view of the other ranks of its replica: their processes, and what they say."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from baton.core.errors import ConfigError, RankError
from baton.core.supervised import child_thread
from baton.engine.collectives.comm import Shard
from baton.engine.collectives.group_comm import JOIN_S
from baton.engine.collectives.rank_books import Books
from baton.engine.collectives.rank_comm import rank_comm
from baton.engine.collectives.rank_device import rank_device
from baton.engine.collectives.rank_messages import (
    Begin,
    BooksWanted,
    Failed,
    HasRoom,
    Joined,
    Loaded,
    RankPools,
    connected,
)
from baton.engine.collectives.shared_memory import SharedMemory
from baton.engine.collectives.shared_pools import AllPools
from baton.engine.memory.rank_storage import RankStorages
from baton.engine.settings.config import EngineConfig

_LOAD_S = 3600.0  # until weights have been read from a slow disk
_REASON_S = 1.0  # until a rank that has failed has said why

R = TypeVar("R", Joined, Loaded, HasRoom, Books)

Report = Joined | Loaded | HasRoom | Books
"""A rank's answer: one where the leader has asked once."""


class Follower:
    """One rank: its process, and our end of the connection."""

    def __init__(self, rank: int, timeout_s: float, memory: int) -> None:
        self.rank = rank
        self.connection, theirs = connected(timeout_s)
        number = theirs.fileno()
        command = [sys.executable, "-m", "baton.engine.assembly.follower", str(number)]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[number, memory]
            )
        self.reports: dict[type[Report], Report] = {}  # what it has said, of each kind

    def ending(self) -> str:
        """Describe how the process has ended; its connection has."""
        try:
            code = self.process.wait(_REASON_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"has exited with status {code}"


class Followers:
    """All ranks but the first. When one of them fails or dies, all are ended, and `lost` says why:
    a replica is whole or it is not there.
    """

    def __init__(self, config: EngineConfig, threads: int) -> None:
        """Start the processes and meet them. threads: of each rank. Raises RankError."""
        self._changed = threading.Condition()
        self._lost: RankError | None = None
        self._closed = False
        self.timeout_s = config.rank_timeout_s
        self.devices: list[str] = []  # of the ranks without the leader; see `device_name`
        self.storages: RankStorages | None = None  # the pools of all ranks, once they have any
        # Where the ranks meet. The others may still read it when rank 0 has met them.
        self._folder = folder = Path(tempfile.mkdtemp(prefix="baton-ranks-"))
        size = config.tp
        self.device = rank_device(config, 0)
        memory = SharedMemory.create(size)
        self._memory = SharedMemory(memory, Shard(0, size), 0, config.rank_timeout_s)
        self._followers = [Follower(rank, config.rank_timeout_s, memory) for rank in range(1, size)]
        os.close(memory)
        self._listener = child_thread(self._listen, "ranks", self._not_heard)
        try:
            for each in self._followers:
                shard = Shard(each.rank, size)
                self._send(each, Begin(config, shard, folder, threads, memory))
            self._reports(Joined, JOIN_S, "start")
            self.comm = rank_comm(config, folder, Shard(0, size), self._memory)
        except RankError:
            self.close()
            raise
        except ConfigError:
            self.close()
            raise
        except RuntimeError as error:  # of gloo or NCCL
            failure = self.failure(error)
            self.close()
            raise failure from error

    @property
    def lost(self) -> RankError | None:
        """The reason why the replica cannot go on; None while all ranks live."""
        return self._lost

    @property
    def processes(self) -> list[int]:
        """The ids of the ranks' processes, by rank, without the leader's."""
        return [each.process.pid for each in self._followers]

    @property
    def meetings(self) -> int:
        """The number of times that the ranks have met in shared memory."""
        return self._memory.meetings

    def weight_bytes(self) -> int:
        """Wait until all ranks have their weights, and return the most that one has. Raises
        RankError.
        """
        loaded = self._reports(Loaded, _LOAD_S, "load its weights")
        shutil.rmtree(self._folder, ignore_errors=True)
        self.devices = [each.device for each in loaded]
        return max(each.weight_bytes for each in loaded)

    def books(self) -> list[Books]:
        """Return the books of each rank but the first, behind the steps so far. Raises
        RankError."""
        return self._asked(BooksWanted(), Books, "report what it has written")

    @property
    def ranks(self) -> int:
        """The number of ranks, the leader among them."""
        return 1 + len(self._followers)

    def begin(self, sizes: RankPools, make: Callable[[], AllPools]) -> None:
        """Make the ranks' pools once all have room for them, and give them, before the first step.
        Raises RankError."""
        self._asked(sizes, HasRoom, "say whether it has room for its pools")
        pools = make()
        for each in self._followers:
            try:
                pools.send(each.rank, each.connection, each.process.pid)
            except OSError as error:
                raise self.failure(error) from error
        pools.close()
        self.storages = pools.storages

    def send(self, message: Any) -> None:
        """Send a message to every rank. Raises RankError."""
        if self._lost is not None:
            raise self._lost
        for each in self._followers:
            self._send(each, message)

    def failure(self, error: Exception) -> RankError:
        """End the replica after an error in a step. Return the reason: what another rank says, if
        one of them does, for its end is what the others notice.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, _REASON_S)
        self._lose(
            f"a step has failed on rank 0, which waits for the others at most {self.timeout_s:g} "
            f"s: {type(error).__name__}: {error}"
        )
        assert self._lost is not None
        return self._lost

    def close(self) -> None:
        """End the processes. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        for each in self._followers:
            each.process.kill()
        for each in self._followers:
            each.process.wait()
        if threading.current_thread() is not self._listener:
            self._listener.join()
        for each in self._followers:
            each.connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, follower: Follower, message: Any) -> None:
        try:
            follower.connection.send(message)
        except OSError as error:
            raise self.failure(error) from error

    def _asked(self, question: BooksWanted | RankPools, kind: type[R], what: str) -> list[R]:
        """Return each rank's report of this kind on a question. Raises RankError."""
        with self._changed:
            for each in self._followers:
                each.reports.pop(kind, None)
        self.send(question)
        return self._reports(kind, self.timeout_s, what)

    def _reports(self, kind: type[R], limit_s: float, what: str) -> list[R]:
        """Wait until each rank has made a report of this kind, and return them. Raises RankError
        when a rank is lost, or after `limit_s`.
        """

        def found() -> list[R]:
            made = (each.reports.get(kind) for each in self._followers)
            return [report for report in made if isinstance(report, kind)]

        def done() -> bool:
            return self._lost is not None or len(found()) == len(self._followers)

        with self._changed:
            in_time = self._changed.wait_for(done, limit_s)
            reports = found()
            late = [str(each.rank) for each in self._followers if kind not in each.reports]
        if not in_time:
            ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(late)}"
            self._lose(f"{ranks} did not {what} within {limit_s:g} s")
        if self._lost is not None:
            raise self._lost
        return reports

    def _listen(self) -> None:
        """Hear what the ranks say, until they end."""
        open_ends = {each.connection: each for each in self._followers}
        while open_ends:
            for end in wait(list(open_ends)):
                assert isinstance(end, Connection)
                follower = open_ends[end]
                try:
                    message = end.recv()
                except (EOFError, OSError):
                    del open_ends[end]
                    if not self._closed:
                        said = f"process {follower.process.pid} {follower.ending()}"
                        self._lose(f"rank {follower.rank} is lost: {said}")
                    continue
                self._take(follower, message)

    def _not_heard(self, error: Exception) -> None:
        """Lose the replica: nobody would hear any more that a rank has failed."""
        self._lose(f"the ranks are not heard any more: {type(error).__name__}: {error}")

    def _take(self, follower: Follower, message: Any) -> None:
        if isinstance(message, Failed):
            self._lose(f"rank {follower.rank} has failed: {message.reason}")
            return
        with self._changed:
            if type(message) in follower.reports:
                self._lose(f"rank {follower.rank} has reported twice: {message}")
            follower.reports[type(message)] = message
            self._changed.notify_all()

    def _lose(self, reason: str) -> None:
        """Note the first reason, and end all ranks: those that wait for one another would wait
        until their deadline.
        """
        with self._changed:
            if self._lost is None:
                self._lost = RankError(f"{reason}; a replica needs all of its ranks")
            self._changed.notify_all()
        self._memory.end()
        for each in self._followers:
            with contextlib.suppress(OSError):
                each.process.kill()
