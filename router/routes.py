"""HTTP endpoints that only a router has."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.router.cluster_info import scrape_targets
from baton.router.service import RouterBackend
from baton.router.worker_table import WorkerTable


def router_routes(backend: RouterBackend, table: WorkerTable) -> list[BaseRoute]:
    """`/server_info`: the cluster, as `baton status` prints it. `/prometheus/targets`: every
    worker's metrics address, for Prometheus' `http_sd_configs`."""

    async def server_info(_: Request) -> Response:
        return JSONResponse(await backend.server_info())

    async def targets(_: Request) -> Response:
        return JSONResponse(scrape_targets(table.workers()))

    return [
        Route("/server_info", server_info, methods=["GET"]),
        Route("/prometheus/targets", targets, methods=["GET"]),
    ]
