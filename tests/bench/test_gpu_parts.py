"""A part of a GPU's run that fails, dies or hangs costs no line but its own."""

import multiprocessing
import os
import signal
import threading
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from baton.bench.gpu import run as gpu_run
from baton.bench.gpu.kernel_cases import KernelCase
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.parts import GpuRun, Limits, Line, Part, Task
from baton.bench.gpu.sizes import TINY, Sizes

# Where a process with threads is forked, Python 3.12 warns; the run's own has none.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def tells(part: Part) -> None:
    part.add("told", "1 us")


def raises() -> None:
    raise KeyError("absent")


def ran(*works) -> GpuRun:
    run = GpuRun(dry=True, budget_s=60.0)
    for number, (work, most_s) in enumerate(works):
        run.part(Task(f"part {number}", work, most_s))
    return run


def test_a_row_that_raises_is_told_and_the_next_has_its_turn():
    def work(part: Part) -> None:
        part.row("bad", raises)
        part.row("late", lambda: tells(part), least_s=1e6)
        part.row("good", lambda: tells(part))

    run = ran((work, 30.0))
    assert [line.what for line in run.lines] == ["bad", "late", "told"]
    assert [line.failed for line in run.lines] == [True, True, False] and run.failed
    assert run.lines[0].beside == "KeyError: 'absent'"


def test_a_part_that_raises_dies_or_hangs_keeps_its_lines_and_leaves_the_others_theirs():
    def raises(part: Part) -> None:
        tells(part)
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    def dies(part: Part) -> None:
        tells(part)
        os.kill(os.getpid(), signal.SIGKILL)

    def hangs(part: Part) -> None:
        tells(part)
        threading.Event().wait()

    run = ran((raises, 30.0), (dies, 30.0), (hangs, 0.5), (tells, 30.0))
    told = [str(line).split()[0] for line in run.lines]
    assert told == ["told", "[part", "told", "[part", "told", "[part", "told"]
    failed = [line for line in run.lines if line.failed]
    assert failed[0].beside == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert [line.value for line in failed[1:]] == ["ended with -9", "stopped after 0 s"]


def test_what_one_part_measures_the_next_ones_know():
    measured = Limits(1e12, 2e14, "a chip")

    def asks(part: Part) -> None:
        part.add("limits", part.limits.chip)

    run = ran((lambda part: part.measured(measured), 30.0), (asks, 30.0))
    assert run.limits == measured and run.lines == [Line("limits", "a chip")]


def test_no_part_begins_once_the_budget_is_spent():
    run = GpuRun(dry=True, budget_s=0.0)
    run.part(Task("part", tells, 30.0))
    assert [line.value for line in run.lines] == ["no time left"] and run.failed


def test_every_models_kernels_have_their_turn_however_long_the_parts_before_take() -> None:
    begins = 0.0
    for task in gpu_run.tasks(dry=False):
        if task.name.startswith("kernels"):
            assert begins < gpu_run.BUDGET_S, task.name
        begins += task.most_s
    assert begins > gpu_run.BUDGET_S  # so that the order matters


class UntilMarked(Part):
    """A part whose time is over when a file is there."""

    def __init__(self, tell: Connection, marked: Path) -> None:
        super().__init__(tell, Limits(), dry=False, until=0.0)
        self._marked = marked

    @property
    def left_s(self) -> float:
        return 0.0 if self._marked.exists() else 60.0


def test_parity_tests_that_hang_tell_what_those_before_them_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    marked, tests = tmp_path / "marked", tmp_path / "tests"
    tests.mkdir()
    (tests / "test_some.py").write_text(
        "import pathlib, threading\n"
        "def test_a(): pass\n"
        "def test_b(): assert 0, 'a wrong sum'\n"
        "def test_c():\n"
        f"    pathlib.Path({str(marked)!r}).touch()\n"
        "    threading.Event().wait()\n"
    )
    monkeypatch.setattr(gpu_run, "_PARITY", str(tests))
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: None)  # no other processes
    receiver, sender = multiprocessing.Pipe(duplex=False)
    gpu_run.parity(UntilMarked(sender, marked))
    line = receiver.recv()
    assert line.failed and line.value == "stopped; 1 passed, 1 failed until then"
    assert "test_b FAILED" in capfd.readouterr().out
    receiver.close()
    sender.close()


def test_a_kernel_that_fails_and_peers_that_do_leave_the_other_kernels_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> float:
        raise ImportError("libcudart.so.12 is missing")

    def few(sizes: Sizes, make: Maker) -> list[KernelCase]:
        return [KernelCase("bad", broken, 1), KernelCase("good", lambda: None, 1 << 20)]

    def once(call) -> float:
        call()
        return 1e-6

    monkeypatch.setattr(gpu_run, "cases", few)
    monkeypatch.setattr(gpu_run, "peers", broken)
    monkeypatch.setattr(gpu_run, "_replayed_seconds", once)
    run = ran((partial(gpu_run.kernels, TINY), 30.0))
    assert [line.what for line in run.lines] == ["tiny peers", "tiny bad", "tiny good"]
    assert [line.failed for line in run.lines] == [True, True, False]
    assert run.lines[2].value == "1.0 us" and run.lines[2].share is not None
