"""The gRPC health service `grpc.health.v1.Health`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.rpc.errors import refuse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no stubs
    """The status of each service, for `grpc.aio` servers.

    That of the grpc package sends a status while it holds a lock that a change of the status needs:
    one watcher that does not read would keep the server from all changes, and from its stop.
    """

    def __init__(self) -> None:
        """The server as a whole, named "", serves until `set` says otherwise."""
        self._statuses = {"": health_pb2.HealthCheckResponse.SERVING}
        self._changed = asyncio.Event()  # a new one after each change

    def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Show a status from now on, to all that watch the service too."""
        self._statuses[service] = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await refuse(context, ApiError(ErrorCode.NOT_FOUND, "no such service; name another"))
        return health_pb2.HealthCheckResponse(status=status)

    async def List(
        self, request: health_pb2.HealthListRequest, context: Any
    ) -> health_pb2.HealthListResponse:
        reply = health_pb2.HealthListResponse()
        for service, status in self._statuses.items():
            reply.statuses[service].status = status
        return reply

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yield the service's status, and each that follows; never ends by itself."""
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        shown: health_pb2.HealthCheckResponse.ServingStatus | None = None
        while True:
            changed = self._changed  # before the look: the next change is not missed
            status = self._statuses.get(request.service, unknown)
            if status != shown:
                shown = status
                yield health_pb2.HealthCheckResponse(status=status)
            await changed.wait()
