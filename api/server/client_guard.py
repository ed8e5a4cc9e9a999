"""The limits of one server's client ports, in the form that its HTTP and gRPC servers take."""

from dataclasses import dataclass
from typing import Self

from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits
from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import CallLog
from baton.api.server.descriptors import client_connections


@dataclass(frozen=True)
class ClientGuard:
    """The limits, who counts what they refuse, and the connections that each port may have."""

    limits: ClientLimits
    metrics: ClientMetrics
    http_connections: int
    grpc_connections: int
    calls: CallLog | None = None  # where calls that are refused are logged; None: nowhere

    @classmethod
    def make(
        cls,
        limits: ClientLimits | None = None,
        metrics: ClientMetrics | None = None,
        calls: CallLog | None = None,
    ) -> Self:
        """limits: None has the defaults. metrics: None exports nothing. calls: None logs
        nothing."""
        limits = limits or ClientLimits()
        metrics = metrics or ClientMetrics("router", CollectorRegistry())
        return cls(limits, metrics, *client_connections(limits.connections), calls)
