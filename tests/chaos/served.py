"""`baton serve` with a tiny model, for tests that send it much."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.deploy.files.state_file import ClusterState

START_S = 240.0
DEADLINE_S = 120.0


def limit_files(most: int) -> None:
    if most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def serving(tiny: Path, folder: Path, *options: str, files: int = 0) -> Iterator[ClusterState]:
    """Run `baton serve` with at most `files` descriptors a process, and yield what it publishes. 0:
    as many as there may be."""
    words = [sys.executable, "-m", "baton.cli.main", "serve", "--model", str(tiny),
             "--memory-gb", "0.25", "--threads", "1", "--http-port", "0", "--grpc-port", "0",
             *options]  # fmt: skip
    with subprocess.Popen(
        words,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: limit_files(files),
    ) as serve:
        try:
            until = time.monotonic() + START_S
            while not (states := list(folder.glob("baton-*/*/state.json"))):
                assert serve.poll() is None and time.monotonic() < until
                time.sleep(0.1)
            yield ClusterState(**json.loads(states[0].read_text()))
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(DEADLINE_S) == 0
        finally:
            serve.kill()
