"""The limits of one server's client ports, in the form that its HTTP and gRPC servers take."""

import logging
import os
import resource
from dataclasses import dataclass
from typing import Self

from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits
from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import CallLog

log = logging.getLogger(__name__)

RESERVE = 64
"""Descriptors that clients never hold: workers, files, and connections that are told to leave."""
LEAST = 16
_GRPC_PART = 4
"""gRPC's clients get one part of so many."""


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


def client_connections(wanted: int) -> tuple[int, int]:
    """Return the most HTTP and the most gRPC connections: `wanted` in all, or fewer where the
    process may not open so many files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = limit - len(os.listdir("/proc/self/fd")) - RESERVE
    most = max(min(wanted, free), LEAST)
    if most < wanted:
        log.warning(
            "clients may hold %d connections instead of %d: this process may open %d files "
            "(`ulimit -n`)",
            most, wanted, limit,
        )  # fmt: skip
    grpc = most // _GRPC_PART
    return most - grpc, grpc
