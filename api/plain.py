"""The endpoints for models and health."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton import __version__
from baton.api.backend import Backend, Health, ModelInfo
from baton.api.replies import error_response
from baton.api.text_service import served_model
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.model_folder import ANY_NAME


@dataclass(frozen=True)
class PlainEndpoints:
    backend: Backend
    details: bool = True  # `/health` and `/ready` say why the server is not ready

    async def models(self, _: Request) -> Response:
        served = await self.backend.models()
        return JSONResponse(
            {"object": "list", "data": [entry for model in served for entry in _entries(model)]}
        )

    async def model(self, request: Request) -> Response:
        name = request.path_params["model_id"]
        return JSONResponse(_model_json(served_model(name, await self.backend.models())))

    async def health(self, _: Request) -> Response:
        """Return 200 while this server works, and 503 once only a new start would help.

        A router without workers is healthy but not ready.
        """
        health = await self.backend.health()
        return self._status(health.alive, health)

    async def ready(self, _: Request) -> Response:
        """Return 200 if a request sent now could be answered, else 503 with the reason."""
        health = await self.backend.health()
        return self._status(health.ready, health)

    async def root(self, _: Request) -> Response:
        """Answer clients that ask whether there is a server, as Claude Code does."""
        return JSONResponse({"server": "baton"})

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    def _status(self, good: bool, health: Health) -> Response:
        detail = health.detail if self.details else ""
        if good:
            return JSONResponse({"status": "ok", "detail": detail})
        return error_response(ApiError(ErrorCode.UNAVAILABLE, detail or "not ready"))


def _entries(model: ModelInfo) -> Iterator[dict[str, Any]]:
    """Yield an entry for each name of a model."""
    yield _model_json(model)
    for name in model.other_names:
        if name != ANY_NAME:
            yield _model_json(model) | {"id": name}


def _model_json(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.model_id,
        "object": "model",
        "created": model.created,
        "owned_by": "baton",
        "root": model.root or model.model_id,
        "max_model_len": model.max_model_len,
    }
