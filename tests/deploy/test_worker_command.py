"""`baton worker`, as a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from deploy.served_worker import DEADLINE_S, served_worker
from deploy.tiny_worker import GRID

COMMAND = (sys.executable, "-m", "baton.cli.main", "worker")


@contextmanager
def answering(tiny: Path, ranks: int) -> Iterator["subprocess.Popen[str]"]:
    """A worker that has answered a request."""
    words = [*COMMAND, "--model", str(tiny), "--tp", str(ranks), "--page-size", str(GRID)]
    with served_worker(words) as worker:
        reply = worker.generate("hello", max_new_tokens=3, ignore_eos=True)
        assert len(reply["output_ids"]) == 3
        yield worker.process


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_answers_until_it_is_told_to_stop(tiny: Path, ranks: int) -> None:
    with answering(tiny, ranks) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_it_ends_with_its_reason_when_a_rank_is_lost(tiny: Path) -> None:
    with answering(tiny, 2) as process:
        (rank,) = [
            child
            for child in psutil.Process(process.pid).children()
            if "baton.engine.assembly.follower" in child.cmdline()
        ]
        rank.kill()
        assert process.wait(DEADLINE_S) == 1, "so that who started it starts another"
        assert process.stdout is not None
        said = " ".join(process.stdout.read().split())
        assert f"rank 1 is lost: process {rank.pid} was killed by signal 9" in said
        assert "Traceback" not in said


def test_a_worker_that_stands_alone_joins_no_router(tiny: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--model", str(tiny), "--router", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "--router needs --role prefill or --role decode" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_several_ranks_cannot_do_is_one_line(tiny: Path) -> None:
    options = ["--tp", "7"]
    done = subprocess.run(
        [*COMMAND, "--model", str(tiny), "--page-size", str(GRID), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert " runs on 1 or " in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_options_that_cannot_work_are_one_line(tiny: Path) -> None:
    options = ["--mamba-scheduler-strategy", "no_buffer", "--page-size", str(GRID)]
    done = subprocess.run(
        [*COMMAND, "--model", str(tiny), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert f"needs --page-size 1; got {GRID}" in done.stderr
    assert "Traceback" not in done.stderr
