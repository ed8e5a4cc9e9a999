"""The metrics of the ports that clients reach."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from baton.api.access.client_limits import Refusal
from baton.api.fields.field_table import UNREAD_FIELDS, FieldClass

_KNOWN = {
    name
    for fields in UNREAD_FIELDS.values()
    for name, use in fields.items()
    if use.kind is FieldClass.EXTRA
}


class ClientMetrics:
    """Connections, calls and refusals of one server."""

    def __init__(
        self,
        component: str,
        registry: CollectorRegistry,
        labels: Mapping[str, str] | None = None,
        keys: CollectorRegistry | None = None,
    ) -> None:
        """component: `router` or `worker`, the second word of each name. labels: of all metrics.

        keys: the registry of what names API keys, where strangers read `registry`; None: the same.
        """
        own = dict(labels or {})
        common: dict[str, Any] = {"labelnames": tuple(own), "registry": registry}
        refusals = Counter(
            f"baton_{component}_refusals",
            "Connections, requests and calls of clients that were refused or cut off.",
            [*own, "reason"],
            registry=registry,
        )
        self._own = own
        self._key_refusals = Counter(
            f"baton_{component}_key_refusals",
            "Requests that a cap of their API key refused.",
            [*own, "key", "cap"],
            registry=keys or registry,
        )
        self._ignored = Counter(
            f"baton_{component}_ignored_fields",
            "Requests with a field or tool that was left out; other is a name that nobody knows.",
            [*own, "field"],
            registry=registry,
        )
        connections = Gauge(
            f"baton_{component}_http_connections", "Open HTTP connections of clients.", **common
        )
        answers = Gauge(
            f"baton_{component}_http_streams", "HTTP requests that are being answered.", **common
        )
        streams = Gauge(f"baton_{component}_grpc_streams", "Open gRPC calls of clients.", **common)
        self.connections = connections.labels(**own) if own else connections
        self.http_streams = answers.labels(**own) if own else answers
        self.grpc_streams = streams.labels(**own) if own else streams
        self._refusals = {reason: refusals.labels(**own, reason=reason.value) for reason in Refusal}

    def key_refused(self, key: str, cap: str) -> None:
        """Count a request that a cap of an API key refused."""
        self._key_refusals.labels(**self._own, key=key, cap=cap).inc()

    def ignored(self, names: Iterable[str]) -> None:
        """Count what was left out of a request, by names of the table of fields alone."""
        for name in {name if name in _KNOWN else "other" for name in names}:
            self._ignored.labels(**self._own, field=name).inc()

    def refused(self, reason: Refusal) -> None:
        self._refusals[reason].inc()
