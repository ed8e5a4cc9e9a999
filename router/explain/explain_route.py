"""`GET /explain/{request_id}`: why a request was placed as it was."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from baton.api.access.access import abortable_by
from baton.router.explain.explanations import Explanations


def explain_routes(explanations: Explanations) -> list[BaseRoute]:
    """Return the route. An API key without scope admin sees its own requests alone."""

    async def explain(request: Request) -> Response:
        name = request.path_params["request_id"]
        return JSONResponse(explanations.find(name, abortable_by(request)))

    return [Route("/explain/{request_id}", explain, methods=["GET"])]
