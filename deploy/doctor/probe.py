"""Probes: code that runs in a process of its own, because it may hang or abort.

A GPU driver can hang the call that asks for its devices, and UCX aborts the process where it cannot
start. `baton doctor` must report both.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from baton.deploy.errors import ProbeError

DEADLINE_S = 60.0
_LAST_LINES = 3


def run_probe(module: str, deadline_s: float = DEADLINE_S, arguments: Sequence[str] = ()) -> Any:
    """Run a module that prints one JSON value as its last line, and return the value.

    Raises ProbeError.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s)
    except subprocess.TimeoutExpired as err:
        raise ProbeError(f"no answer within {deadline_s:g} s") from err
    if done.returncode < 0:
        raise ProbeError(f"its process was ended by signal {-done.returncode}{_last(done.stderr)}")
    if done.returncode:
        raise ProbeError(_last(done.stderr).removeprefix(": ") or f"exit code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _last(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines()][-_LAST_LINES:]
    return f": {' | '.join(lines)}" if lines else ""
