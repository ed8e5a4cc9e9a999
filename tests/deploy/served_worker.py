"""A `baton worker` that stands alone, as a process of its own, and what a client asks it."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 120.0


@dataclass(frozen=True)
class ServedWorker:
    process: "subprocess.Popen[str]"
    url: str
    said: str  # what it printed up to its address

    def generate(self, text: str, **sampling: object) -> dict[str, Any]:
        """Return the reply of `/generate`."""
        request = urllib.request.Request(
            f"{self.url}/generate",
            json.dumps({"text": text, "sampling_params": sampling}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
            found: dict[str, Any] = json.load(reply)
        return found


@contextmanager
def served_worker(
    command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[ServedWorker]:
    """Start a worker on any free ports, with little memory, and kill it at the end.

    command: as ("baton", "worker"), and options. folder: where it runs.
    """
    options = ["--http", "0", "--memory-gb", "0.1", "--threads", "1"]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while (found := re.search(r"http://[\d.:]+", said)) is None:
                line = process.stdout.readline()
                assert line, said
                said += line
            yield ServedWorker(process, found[0], said)
        finally:
            process.kill()
