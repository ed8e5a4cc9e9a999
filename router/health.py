"""The health of a router, shown by its gRPC health service."""

from grpc_health.v1.health_pb2 import HealthCheckResponse

from baton.api.grpc.health import HealthServicer
from baton.router.backend import RouterBackend

RECHECK_S = 60.0
"""The watcher is woken by every change. This bounds how long a missed wake-up goes unnoticed."""


async def watch_health(servicer: HealthServicer, backend: RouterBackend, service: str) -> None:
    """Report the backend's health for `service` and for the whole server, until cancelled."""
    while True:
        await show_health(servicer, backend.health_now().ready, service)
        await backend.changed.wait(RECHECK_S)


async def show_health(servicer: HealthServicer, ready: bool, service: str) -> None:
    """Report whether a request sent now could be answered, for `service` and the whole server."""
    status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
    for name in ("", service):
        servicer.set(name, status)
