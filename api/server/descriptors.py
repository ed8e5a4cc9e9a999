"""The part of the process's file descriptors that clients may hold."""

import logging
import os
import resource

log = logging.getLogger(__name__)

RESERVE = 64
"""Descriptors that clients never hold: workers, files, and connections that are told to leave."""
LEAST = 16
_GRPC_PART = 4
"""gRPC's clients get one part of so many."""


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
