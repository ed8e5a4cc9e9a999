"""A client that is run, and what it needs."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.scenarios import Scripts

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent.parent / ".clients"
PATH = "/usr/local/bin:/usr/bin:/bin"


def nothing_to_prepare(home: Path, url: str) -> None:
    """Leave the folder of a client empty."""


def trusted(home: Path, said: str) -> str:
    """Take the exit status of a client for its verdict."""
    return ""


@dataclass(frozen=True)
class Program:
    """A client's process. Functions are given its folder, and the server's address."""

    name: str
    version: str
    command: Callable[[Path, str], Sequence[str]]
    scripts: Callable[[Path], Scripts]
    variables: Callable[[Path, str], Mapping[str, str]] = lambda home, url: {}
    prepare: Callable[[Path, str], None] = nothing_to_prepare
    check: Callable[[Path, str], str] = trusted  # folder and output -> why it failed, or ""
    refused: Sequence[int] = ()  # the statuses of requests that must be refused, in order

    def environment(self, home: Path, url: str) -> dict[str, str]:
        return {"HOME": str(home), "PATH": PATH} | dict(self.variables(home, url))


def locked_version(lock: str, package: str) -> str:
    """Return the version of a Python package in a lock file."""
    found = re.search(rf"^{package}==(\S+)", (HERE / "python" / lock).read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{lock} has no {package}")
    return found[1]


def npm_version(folder: str, package: str) -> str:
    """Return the version of an npm package in a lock file."""
    lock = json.loads((HERE / "node" / folder / "package-lock.json").read_text())
    found: str = lock["packages"][f"node_modules/{package}"]["version"]
    return found
