"""The report of a worker that serves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerStarted:
    worker_id: str
    incarnation: int
    address: str  # host:port of its gRPC server
    pid: int
