"""The rules for which API key may call which endpoint: a table for HTTP and one for gRPC, both
default deny."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import grpc
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.api.access.key_accounts import KeyCall
from baton.api.access.key_gate import KeyGate
from baton.api.access.key_guesses import address_of_peer
from baton.api.access.keys import Key, KeyScope
from baton.api.backend import MAX_PRIORITY, GenerateRequest
from baton.api.call_log import CallLog, CallRecord, record_in
from baton.api.replies import error_response
from baton.api.request_headers import headers_in
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, ConfigError
from baton.rpc.errors import refuse

ROUTES: dict[str, KeyScope | None] = {
    "/": None,
    "/health": None,
    "/ready": None,
    "/v1/completions": KeyScope.INFER,
    "/v1/chat/completions": KeyScope.INFER,
    "/v1/responses": KeyScope.INFER,
    "/v1/messages": KeyScope.INFER,
    "/v1/messages/count_tokens": KeyScope.INFER,
    "/v1/models": KeyScope.INFER,
    "/v1/models/{model_id:path}": KeyScope.INFER,
    "/tokenize": KeyScope.INFER,
    "/detokenize": KeyScope.INFER,
    "/version": KeyScope.INFER,
    "/openapi.json": KeyScope.INFER,
    "/docs": KeyScope.INFER,
    "/generate": KeyScope.INFER,
    "/health_generate": KeyScope.INFER,
    "/model_info": KeyScope.INFER,
    "/get_model_info": KeyScope.INFER,
    "/metrics": KeyScope.METRICS,
    "/prometheus/targets": KeyScope.METRICS,
    "/workers/{worker_id}/metrics": KeyScope.METRICS,
    "/explain/{request_id}": KeyScope.ADMIN,
    "/server_info": KeyScope.METRICS,
    "/get_server_info": KeyScope.METRICS,
    "/flush_cache": KeyScope.ADMIN,
    "/abort_request": KeyScope.ADMIN,
    "/start_profile": KeyScope.ADMIN,
    "/stop_profile": KeyScope.ADMIN,
    "/control": KeyScope.ADMIN,
}
"""The scope that each route needs; None: no key."""

RPCS: dict[str, KeyScope | None] = {
    "/baton.v1.Inference/Generate": KeyScope.INFER,
    "/baton.v1.Inference/GenerateBatch": KeyScope.INFER,
    "/baton.v1.Inference/Tokenize": KeyScope.INFER,
    "/baton.v1.Inference/Detokenize": KeyScope.INFER,
    "/baton.v1.Inference/ListModels": KeyScope.INFER,
    "/baton.v1.Inference/Abort": KeyScope.ADMIN,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/Watch": None,
    "/grpc.health.v1.Health/List": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KeyScope.INFER,
}
"""The scope that each RPC needs; None: no key."""

OWN_REQUESTS: dict[str, KeyScope] = {
    "/abort_request": KeyScope.INFER,
    "/explain/{request_id}": KeyScope.INFER,
    "/baton.v1.Inference/Abort": KeyScope.INFER,
}
"""Routes and RPCs that a second scope opens too, for requests of the same key alone."""

_OWNER, _CALL, _WHOSE = "baton.owner", "baton.call", "baton.whose"
"""Places of an ASGI scope for its key's name, its `KeyCall`, and whose requests it may see and
abort."""
_Metadata = Iterable[tuple[str, Any]] | None
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


def guard_routes(routes: Iterable[BaseRoute], keys: KeyGate) -> None:
    """Let each route ask for a key of its scope. Raises ConfigError for one not in the table."""
    for route in routes:
        if not isinstance(route, Route) or route.path not in ROUTES:
            raise ConfigError(f"no scope is defined for the endpoint {route}")
        scope, own = ROUTES[route.path], OWN_REQUESTS.get(route.path)
        if scope is not None:
            scopes = (scope,) if own is None else (scope, own)
            route.app = _KeyGuard(route.app, keys, scopes)


class _KeyGuard:
    """An ASGI application that refuses requests without a key of one of `scopes`.

    It counts requests of scope infer. Their replies say what the key may still use.
    """

    def __init__(self, app: ASGIApp, keys: KeyGate, scopes: tuple[KeyScope, ...]) -> None:
        self._app = app
        self._keys = keys
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            key = self._key(scope)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        scope[_OWNER] = key.name
        if (record := record_in(scope)) is not None:
            record.key = key.name
        scope[_WHOSE] = _whose(key)
        if self._scopes != (KeyScope.INFER,):
            await self._app(scope, receive, send)
            return
        with self._keys.accounts.call(key) as call:
            scope[_CALL] = call
            reply = self._app
            try:
                call.begin()
            except ApiError as error:
                reply = error_response(error, scope["path"])
            await reply(scope, receive, _with_headers(send, call))

    def _key(self, scope: Scope) -> Key:
        headers = headers_in(scope)
        given = _key_text(headers.get("authorization"), headers.get("x-api-key"))
        try:
            return self._keys.keyring.admit(given, *self._scopes)
        except ApiError as error:
            address = (scope.get("client") or ("",))[0]
            raise self._keys.guesses.told(address, error) from error


def _with_headers(send: Send, call: KeyCall) -> Send:
    """Return a `send` that adds what is left of the key's caps to the reply's headers."""

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(call.headers())
        await send(message)

    return send_with


def owner_of(request: Request) -> str | None:
    """Return the name of the key that opened the endpoint; None where no key is asked for."""
    return owner_in(request.scope)


def owner_in(scope: Scope) -> str | None:
    """Return the name of the key that opened the endpoint of an ASGI scope, as `owner_of` does."""
    return scope.get(_OWNER)


def abortable_by(request: Request) -> str | None:
    """Return the key whose requests alone this request may see and abort; None: everybody's."""
    return request.scope.get(_WHOSE)


def abortable_by_call(metadata: _Metadata, keys: KeyGate | None) -> str | None:
    """Return the key whose requests alone this gRPC call may abort; None: everybody's."""
    return None if keys is None else _whose(keys.keyring.authenticate(_key_of_call(metadata)))


def _whose(key: Key) -> str | None:
    return None if KeyScope.ADMIN in key.scopes else key.name


def highest_priority(request: Request) -> int:
    """Return the highest priority that the request's key may give its answers."""
    call: KeyCall | None = request.scope.get(_CALL)
    most = None if call is None else call.account.key.max_priority
    return MAX_PRIORITY if most is None else min(most, MAX_PRIORITY)


def admit(request: Request, answers: Sequence[GenerateRequest]) -> None:
    """Reserve what the answers to one prompt may use of the key's caps. Raises `ApiError`."""
    call: KeyCall | None = request.scope.get(_CALL)
    if call is not None:
        call.admit(answers)


@asynccontextmanager
async def open_call(
    context: grpc.aio.ServicerContext, keys: KeyGate | None, calls: CallLog | None, rpc: str
) -> AsyncIterator[tuple[KeyCall | None, CallRecord | None]]:
    """Count and log a gRPC call, and settle what it reserves at its end.

    Yields None where no key is asked for, and None where calls are not logged. An ApiError inside
    ends the call with its status. Trailing metadata says what is left of the key's caps, as the
    headers of HTTP's replies do.
    """
    call: KeyCall | None = None
    metadata = context.invocation_metadata()
    try:
        with nullcontext() if calls is None else calls.of_rpc(metadata, rpc) as record:
            if keys is None:
                yield None, record
                return
            key = keys.keyring.authenticate(_key_of_call(metadata))
            if record is not None:
                record.key = key.name
            with keys.accounts.call(key) as call:
                call.begin()
                yield call, record
            context.set_trailing_metadata(tuple(call.headers().items()))
    except ApiError as error:
        await refuse(context, error, None if call is None else call.headers())


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no stubs
    """An interceptor that ends calls without a key of the RPC's scope."""

    def __init__(self, keys: KeyGate, calls: CallLog | None = None) -> None:
        """calls: where the calls that are ended here are logged; None: nowhere."""
        self._keys = keys
        self._calls = calls

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        try:
            self._check(handler_call_details)
        except ApiError as err:
            return self._refusing(handler_call_details.method, err)
        return await continuation(handler_call_details)

    def _check(self, call: grpc.HandlerCallDetails) -> None:
        if call.method not in RPCS:
            raise ApiError(ErrorCode.PERMISSION_DENIED, "no API key opens this method")
        scope = RPCS[call.method]
        if scope is not None:
            own = OWN_REQUESTS.get(call.method)
            scopes = (scope,) if own is None else (scope, own)
            self._keys.keyring.admit(_key_of_call(call.invocation_metadata), *scopes)

    def _refusing(self, method: str, error: ApiError) -> grpc.RpcMethodHandler:
        """Return a handler that ends a call of any kind, before it reads a message."""

        async def end(_: object, context: grpc.aio.ServicerContext) -> None:
            told = self._keys.guesses.told(address_of_peer(context.peer()), error)
            if self._calls is not None:
                self._calls.refused_rpc(context.invocation_metadata(), method, told)
            await refuse(context, told)

        return grpc.stream_stream_rpc_method_handler(end)


def key_of_call(method: str, metadata: _Metadata, keys: KeyGate | None) -> str | None:
    """Return the name of the key that opened a gRPC method; None where it needs no key."""
    if keys is None or RPCS[method] is None:
        return None
    return keys.keyring.authenticate(_key_of_call(metadata)).name


def _key_of_call(metadata: _Metadata) -> str | None:
    given = {name: value for name, value in metadata or ()}
    return _key_text(given.get("authorization"), given.get("x-api-key"))


def _key_text(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key in `Authorization: Bearer KEY`, else the one in `x-api-key`, or None."""
    kind, _, text = (authorization or "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else api_key
