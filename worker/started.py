"""What a worker says once it serves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    worker_id: str
    incarnation: int
    address: str  # host:port of its gRPC server
    metrics_address: str  # host:port of /metrics
    pid: int
    load_s: float  # seconds that reading the model took
