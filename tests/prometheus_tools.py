"""Debian's `prometheus` and `promtool`, and what to do where they are not installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TIMEOUT_S = 120.0


def tool(name: str) -> str:
    """Return the path of `prometheus` or `promtool`.

    Skips the test where the tool is not installed, but fails it in CI, which installs it.
    """
    found = shutil.which(name)
    if found is None:
        reason = f"no {name}: `make tools` installs it where it can"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool, and return its status and output."""
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
