"""`grpc.health.v1.Health`, kept in step with the backend."""

from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from baton.router.service import RouterBackend

LOOK_AGAIN_S = 60.0
"""Changes wake the watcher; this bounds how long a missed one could go unseen."""


async def watch_health(
    servicer: health_aio.HealthServicer, backend: RouterBackend, service: str
) -> None:
    """Until cancelled: report for `service`, and for the server as a whole."""
    while True:
        ready = backend.health_now().ready
        status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
        for name in ("", service):
            await servicer.set(name, status)
        await backend.changed.wait(LOOK_AGAIN_S)
