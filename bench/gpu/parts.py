"""The parts of a run on a GPU, each in a process of its own.

A kernel that reads outside its memory makes its process's device unusable, and one that hangs never
returns. Neither affects the other parts, nor the lines that its own part has already reported.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch


@dataclass(frozen=True)
class Line:
    """One line of the table. share: of what the limit allows, 0 to 1."""

    what: str
    value: str
    limit: str = ""
    share: float | None = None
    beside: str = ""  # a peer's value
    failed: bool = False

    def __str__(self) -> str:
        share = "" if self.share is None else f"{self.share:.0%}"
        told = f"{self.what:52} {self.value:>12} {self.limit:>12} {share:>6}  {self.beside}"
        return told.rstrip()


@dataclass(frozen=True)
class Limits:
    """The device's measured limits.

    bandwidth: bytes a second. arithmetic: bf16 FLOP a second.
    """

    bandwidth: float = 4.3e12  # an H200's, used until they are measured
    arithmetic: float = 7.9e14
    chip: str = "not asked"


class Part:
    """A running part, in its own process: its settings, and the pipe for its results."""

    def __init__(self, tell: Connection, limits: Limits, dry: bool, until: float) -> None:
        """until: when the part is stopped, by time.monotonic()."""
        self._tell = tell
        self.limits = limits
        self.dry = dry
        self.device = torch.device("cpu" if dry else "cuda")
        self._until = until

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    def add(self, what: str, value: str, limit: str = "", share: float | None = None,
            beside: str = "", failed: bool = False) -> None:  # fmt: skip
        self._tell.send(Line(what, value, limit, share, beside, failed))

    def measured(self, limits: Limits) -> None:
        self._tell.send(limits)

    def row(self, what: str, work: Callable[[], None], least_s: float = 0.0) -> None:
        """Run `work` and report its failure as a line, so that the next row still runs.

        A row with less than `least_s` left is skipped.
        """
        if self.left_s < least_s:
            self.add(what, "no time left", failed=True)
            return
        try:
            work()
        except Exception as error:  # a kernel may raise anything, and no row may stop another
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.add(what, "failed", beside=said, failed=True)


@dataclass(frozen=True)
class Task:
    """A part to run. name: of the part. most_s: the longest that it may take."""

    name: str
    work: Callable[[Part], None]
    most_s: float


class GpuRun:
    """A run of one part after another, within `budget_s` together."""

    def __init__(self, dry: bool, budget_s: float) -> None:
        self._dry = dry
        self._began = time.monotonic()
        self._budget_s = budget_s
        self.limits = Limits()
        self.lines: list[Line] = []

    @property
    def failed(self) -> bool:
        return any(line.failed for line in self.lines)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    def add(self, line: Line) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def part(self, task: Task) -> None:
        """Run a part, and collect its lines until it ends or its time is over."""
        most = min(task.most_s, self._budget_s - self.spent_s)
        print(f"[{task.name}] after {self.spent_s:.0f} s", flush=True)
        if most <= 0:
            self.add(Line(f"[{task.name}]", "no time left", failed=True))
            return
        until = time.monotonic() + most
        receiver, sender = multiprocessing.Pipe(duplex=False)
        # A forked process can use CUDA only if this process never has.
        process = multiprocessing.get_context("fork").Process(
            target=_in_child, args=(sender, task, replace(self.limits), self._dry, until)
        )
        process.start()
        sender.close()
        told_in_time = self._listen(receiver, until)
        if not told_in_time:
            process.kill()
        process.join()
        receiver.close()
        if not told_in_time:
            self.add(Line(f"[{task.name}]", f"stopped after {most:.0f} s", failed=True))
        elif process.exitcode:
            self.add(Line(f"[{task.name}]", f"ended with {process.exitcode}", failed=True))

    def _listen(self, receiver: Connection, until: float) -> bool:
        """Return True if the part closed its end before its time was over."""
        while receiver.poll(max(0.0, until - time.monotonic())):
            try:
                told = receiver.recv()
            except EOFError:
                return True
            if isinstance(told, Limits):
                self.limits = told
            else:
                self.add(told)
        return False


def _in_child(tell: Connection, task: Task, limits: Limits, dry: bool, until: float) -> None:
    part = Part(tell, limits, dry, until)
    part.row(f"[{task.name}]", lambda: task.work(part))
