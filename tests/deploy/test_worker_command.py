"""`baton worker`, as a process of its own."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from deploy.tiny_worker import GRID

DEADLINE_S = 120.0
COMMAND = (sys.executable, "-m", "baton.cli.main", "worker")


@contextmanager
def answering(tiny: Path, ranks: int) -> Iterator["subprocess.Popen[str]"]:
    """A worker that has answered a request."""
    options = ["--tp", str(ranks), "--page-size", str(GRID), "--memory-gb", "0.1",
               "--threads", "1", "--http", "0"]  # fmt: skip
    with subprocess.Popen(
        [*COMMAND, "--model", str(tiny), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            found = re.search(r"http://[\d.:]+", "".join(lines))
            assert found, lines
            body = {"text": "hello", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
            request = urllib.request.Request(
                f"{found[0]}/generate",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
                assert len(json.load(reply)["output_ids"]) == 3
            yield process
        finally:
            process.kill()


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
