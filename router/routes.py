"""The HTTP endpoints that only a router has."""

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.api.access.access import abortable_by
from baton.router.cluster_info import metrics_path, scrape_targets
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.explain.explanations import Explanations


def router_routes(
    table: WorkerTable, router_id: str, page_of: Callable[[str], Awaitable[bytes]]
) -> list[BaseRoute]:
    """Return the routes of `/prometheus/targets`, which is Prometheus' HTTP service discovery, and
    of the workers' metrics.

    page_of: returns the metrics of a worker by its id. Raises ApiError.
    """

    async def targets(request: Request) -> Response:
        # The address by which Prometheus reached this router: the one that it listens on may be
        # a wildcard such as 0.0.0.0.
        url = request.url
        return JSONResponse(scrape_targets(router_id, table.workers(), url.netloc, url.scheme))

    async def page(request: Request) -> Response:
        text = await page_of(request.path_params["worker_id"])
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/prometheus/targets", targets, methods=["GET"]),
        Route(metrics_path("{worker_id}"), page, methods=["GET"]),
    ]


def explain_routes(explanations: Explanations) -> list[BaseRoute]:
    """Return the route. An API key without scope admin sees its own requests alone."""

    async def explain(request: Request) -> Response:
        name = request.path_params["request_id"]
        return JSONResponse(explanations.find(name, abortable_by(request)))

    return [Route("/explain/{request_id}", explain, methods=["GET"])]
