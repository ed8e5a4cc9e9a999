"""The options of what a process tells of its work."""

from dataclasses import dataclass

from baton.core.logs import LogFormat
from baton.core.metric_dialect import MetricDialect, read_dialects
from baton.core.options import Group, ReadText, option


# fmt: off
@dataclass(frozen=True)
class TelemetryOptions:
    """Set once, from the command line; the same for the router and all workers."""

    log_format: LogFormat = option(
        LogFormat.JSON, Group.RECORDS, "Form of the lines in the logs of router and workers.")
    otlp_traces_endpoint: str | None = option(
        None, Group.RECORDS,
        "OpenTelemetry collector that takes OTLP over gRPC, as http://127.0.0.1:4317, to which "
        "router and workers send traces of requests. Needs `pip install 'baton-serve[otel]'`.",
        metavar="URL")
    metric_aliases: tuple[MetricDialect, ...] = option(
        (), Group.RECORDS,
        "Servers by whose metric names /metrics shows what it has too, after commas: vllm, sglang. "
        "See docs/metrics.md.", ReadText(read_dialects), metavar="NAMES")
# fmt: on
