"""The HTTP endpoints that only a router has."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.router.cluster_info import router_target, worker_targets
from baton.router.worker_table import WorkerTable


def router_routes(table: WorkerTable, router_id: str) -> list[BaseRoute]:
    """Return the route of `/prometheus/targets`: Prometheus' HTTP service discovery."""

    async def targets(request: Request) -> Response:
        # The address by which Prometheus reached this router: the one that it listens on may be
        # a wildcard such as 0.0.0.0.
        router = router_target(router_id, request.url.netloc, request.url.scheme)
        return JSONResponse([router, *worker_targets(table.workers())])

    return [Route("/prometheus/targets", targets, methods=["GET"])]
