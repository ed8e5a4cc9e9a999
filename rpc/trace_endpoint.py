"""The collector that spans are sent to, by OpenTelemetry.

OpenTelemetry is an extra: `rpc.otlp` needs it, and is imported only where traces are sent.
"""

import importlib
import importlib.util
from urllib.parse import urlsplit

from baton.core.errors import ConfigError
from baton.rpc.tracing import Tracing

_PACKAGE = "opentelemetry.exporter.otlp"


def check_endpoint(endpoint: str | None) -> None:
    """Raise ConfigError for what is no collector's URL, or where the extra is not installed."""
    if endpoint is None:
        return
    found = urlsplit(endpoint)
    try:
        wrong = found.scheme not in ("http", "https") or not found.hostname or found.port == 0
    except ValueError:
        wrong = True
    if wrong or found.path not in ("", "/"):
        raise ConfigError(
            f"{endpoint!r} is no collector's address; expected a URL without a path, as "
            "http://127.0.0.1:4317"
        )
    try:
        there = importlib.util.find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        raise ConfigError(
            "traces need OpenTelemetry; `pip install 'baton-serve[otel]'` installs it"
        )


def open_tracing(endpoint: str | None, **resource: str) -> Tracing | None:
    """Return what sends this process's spans to a collector; None where `endpoint` is None.

    resource: attributes of the process, such as its worker's id. Raises ConfigError.
    """
    if endpoint is None:
        return None
    check_endpoint(endpoint)
    made: Tracing = vars(importlib.import_module("baton.rpc.otlp"))["OtlpTracing"](
        endpoint, resource
    )
    return made
