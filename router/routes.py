"""HTTP endpoints that only a router has."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.router.cluster_info import scrape_targets
from baton.router.worker_table import WorkerTable


def router_routes(table: WorkerTable) -> list[BaseRoute]:
    """`/prometheus/targets`: every worker's metrics address, for Prometheus' `http_sd_configs`."""

    async def targets(_: Request) -> Response:
        return JSONResponse(scrape_targets(table.workers()))

    return [Route("/prometheus/targets", targets, methods=["GET"])]
