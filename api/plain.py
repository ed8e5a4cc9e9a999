"""Endpoints that only ask: models and health."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from baton.api.backend import Backend, ModelInfo
from baton.api.errors import ApiError, ErrorCode
from baton.api.replies import error_response
from baton.api.text_service import served_model


@dataclass(frozen=True)
class PlainEndpoints:
    backend: Backend

    async def models(self, _: Request) -> Response:
        served = await self.backend.models()
        return JSONResponse({"object": "list", "data": [_model_json(m) for m in served]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model_id"]
        return JSONResponse(_model_json(served_model(name, await self.backend.models())))

    async def health(self, _: Request) -> Response:
        """200 where a request sent now could be answered, else 503 and why."""
        health = await self.backend.health()
        if health.ready:
            return JSONResponse({"status": "ok", "detail": health.detail})
        return error_response(ApiError(ErrorCode.UNAVAILABLE, health.detail or "not ready"))


def _model_json(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.model_id,
        "object": "model",
        "created": model.created,
        "owned_by": "baton",
        "root": model.root or model.model_id,
        "max_model_len": model.max_model_len,
    }
