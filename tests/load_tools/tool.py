"""A load tool, what it sends, and what it reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".clients" / "load"


@dataclass(frozen=True)
class Server:
    """A server as a tool is told of it. folder: with its tokenizer."""

    url: str
    model: str
    folder: Path
    metrics: Sequence[str]  # pages: of the router, and of workers


@dataclass(frozen=True)
class Load:
    """Requests of one shape that arrive at a fixed rate. Lengths in tokens."""

    requests: int = 80
    rate: float = 8.0  # a second
    input_len: int = 200
    output_len: int = 32


@dataclass(frozen=True)
class Reported:
    """The sums and means of one run, as a tool or the server counts them."""

    requests: int
    input_tokens: int
    output_tokens: int
    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True)
class Tool:
    """A tool in an environment of its own. Functions get the folder of a run, which is empty."""

    name: str
    command: Callable[[Server, Load, Path], Sequence[str]]
    read: Callable[[Path], Reported]
    variables: Mapping[str, str]
    check: Callable[[Path], list[str]] = lambda home: []
    """Return what else is wrong with its files."""


def program(environment: str, name: str) -> str:
    """Return the path of a program. environment: that of its tool."""
    return str(ENVIRONMENTS / environment / "bin" / name)
