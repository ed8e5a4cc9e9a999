"""The options of what a process tells of its work besides metrics."""

from dataclasses import dataclass

from baton.core.logs import LogFormat


@dataclass(frozen=True)
class TelemetryOptions:
    """Set once, from the command line; the same for the router and all workers."""

    log_format: LogFormat = LogFormat.JSON
    otlp_traces_endpoint: str | None = None  # URL of a collector, OTLP over gRPC; None: no traces
