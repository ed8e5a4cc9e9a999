"""The addresses that a worker reports once it serves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerStarted:
    worker_id: str
    incarnation: int
    address: str  # host:port of its gRPC server
    metrics_address: str  # host:port of /metrics
    pid: int
