"""The servers by whose metric names a process may show its numbers too."""

from enum import StrEnum


class MetricDialect(StrEnum):
    """A server whose names dashboards, load tools and endpoint pickers know."""

    VLLM = "vllm"
    SGLANG = "sglang"


def read_dialects(text: str) -> tuple[MetricDialect, ...]:
    """Return the servers that are named between commas, each once. Raises ValueError."""
    names = [name for name in map(str.strip, text.split(",")) if name]
    known = [dialect.value for dialect in MetricDialect]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
    return tuple(MetricDialect(name) for name in dict.fromkeys(names))
