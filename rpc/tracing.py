"""Spans of requests. A trace's context travels as W3C's headers `traceparent` and `tracestate`."""

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

Attribute = str | int | float | bool


class TraceContext(NamedTuple):
    """The span that others are children of."""

    traceparent: str
    tracestate: str = ""


class TraceSpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext:
        """Return what its children, in this process or another, are begun with."""
        ...

    def end(self, error: str = "", **attributes: Attribute | None) -> None:
        """End the span. error: why it failed, if it did. Idempotent."""
        ...


class Tracing(Protocol):
    """The spans of one process."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        *,
        since_s: float | None = None,
        serves: bool = False,
        **attributes: Attribute | None,
    ) -> TraceSpan:
        """Begin a span.

        parent: None begins a trace. since_s: by `time.monotonic`; None: now. serves: it is the
        answer to a client's call. Attributes that are None are left out.
        """
        ...

    def record(
        self,
        name: str,
        parent: TraceContext,
        since_s: float,
        until_s: float,
        **attributes: Attribute | None,
    ) -> None:
        """Record a span that has ended. since_s, until_s: by `time.monotonic`."""
        ...

    def close(self) -> None:
        """Send what is left, for two seconds at most."""
        ...


def context_in(headers: Mapping[str, str]) -> TraceContext | None:
    """Return the caller's context from headers with names in lower case, or None."""
    parent = headers.get("traceparent")
    return None if parent is None else TraceContext(parent, headers.get("tracestate", ""))


def wall_ns(monotonic_s: float) -> int:
    """Return the wall clock's nanoseconds at a moment by `time.monotonic`."""
    return time.time_ns() - round((time.monotonic() - monotonic_s) * 1e9)
