"""The rules for which API key may call which endpoint: a table for HTTP and one for gRPC, both
default deny."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.api.keys import Keyring, KeyScope
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, ConfigError
from baton.rpc.errors import abort, error_to_proto

ROUTES: dict[str, KeyScope | None] = {
    "/health": None,
    "/v1/completions": KeyScope.INFER,
    "/v1/chat/completions": KeyScope.INFER,
    "/v1/models": KeyScope.INFER,
    "/v1/models/{model_id:path}": KeyScope.INFER,
    "/generate": KeyScope.INFER,
    "/health_generate": KeyScope.INFER,
    "/model_info": KeyScope.INFER,
    "/get_model_info": KeyScope.INFER,
    "/metrics": KeyScope.METRICS,
    "/prometheus/targets": KeyScope.METRICS,
    "/server_info": KeyScope.METRICS,
    "/get_server_info": KeyScope.METRICS,
    "/flush_cache": KeyScope.ADMIN,
    "/abort_request": KeyScope.ADMIN,
}
"""The scope that each route needs; None: no key."""

RPCS: dict[str, KeyScope | None] = {
    "/baton.v1.Inference/Generate": KeyScope.INFER,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/Watch": None,
    "/grpc.health.v1.Health/List": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KeyScope.INFER,
}
"""The scope that each RPC needs; None: no key."""

_OWNER = "baton.owner"
"""Under which a request's ASGI scope has the name of its key."""
_Metadata = Iterable[tuple[str, Any]] | None
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


def guard_routes(routes: Iterable[BaseRoute], keys: Keyring) -> None:
    """Let each route ask for a key of its scope. Raises ConfigError for one not in the table."""
    for route in routes:
        if not isinstance(route, Route) or route.path not in ROUTES:
            raise ConfigError(f"no scope is defined for the endpoint {route}")
        scope = ROUTES[route.path]
        if scope is not None:
            route.app = _KeyGuard(route.app, keys, scope)


class _KeyGuard:
    """An ASGI application that raises `ApiError` for requests without a key of `scope`."""

    def __init__(self, app: ASGIApp, keys: Keyring, scope: KeyScope) -> None:
        self._app = app
        self._keys = keys
        self._scope = scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        key = self._keys.admit(
            _key_text(headers.get("authorization"), headers.get("x-api-key")), self._scope
        )
        scope[_OWNER] = key.name
        await self._app(scope, receive, send)


def owner_of(request: Request) -> str | None:
    """Return the name of the key that opened the endpoint; None where no key is asked for."""
    return request.scope.get(_OWNER)


def owner_of_call(metadata: _Metadata, keys: Keyring | None) -> str | None:
    """Return the name of the key that a call gave; None where no key is asked for.

    Raises UNAUTHENTICATED.
    """
    return None if keys is None else keys.authenticate(_key_of_call(metadata)).name


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no stubs
    """An interceptor that ends calls without a key of the RPC's scope."""

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        try:
            self._check(handler_call_details)
        except ApiError as err:
            return _refusing(err)
        return await continuation(handler_call_details)

    def _check(self, call: grpc.HandlerCallDetails) -> None:
        if call.method not in RPCS:
            raise ApiError(ErrorCode.PERMISSION_DENIED, "no API key opens this method")
        scope = RPCS[call.method]
        if scope is not None:
            self._keys.admit(_key_of_call(call.invocation_metadata), scope)


def _refusing(error: ApiError) -> grpc.RpcMethodHandler:
    """Return a handler that ends a call of any kind with `error`, before it reads a message."""

    async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
        await abort(context, error_to_proto(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _key_of_call(metadata: _Metadata) -> str | None:
    given = {name: value for name, value in metadata or ()}
    return _key_text(given.get("authorization"), given.get("x-api-key"))


def _key_text(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key in `Authorization: Bearer KEY`, else the one in `x-api-key`, or None."""
    kind, _, text = (authorization or "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else api_key
