"""The RPCs that a process may call of another: one table by role, default deny.

`api/access/access.py` is the table for clients outside the cluster.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.proto.common_pb2 import DECODE, PREFILL, Hello
from baton.rpc.credentials import Credentials
from baton.rpc.errors import abort, error_to_proto
from baton.rpc.identity import Identity, ProcessRole, identity_in, number_in

_ROUTER, _OPERATOR = ProcessRole.ROUTER, ProcessRole.OPERATOR
_PREFILL, _DECODE = ProcessRole.PREFILL, ProcessRole.DECODE

CALLERS: Mapping[str, frozenset[ProcessRole]] = {
    "/baton.v1.Registry/Register": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.Registry/Name": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.Rank/Session": frozenset({_ROUTER}),
    "/baton.v1.Handoff/Control": frozenset({_DECODE}),
    "/baton.v1.Prefixes/Fetch": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.Prefixes/Lend": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.StateChannel/Write": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.StateChannel/WriteWhole": frozenset({_PREFILL, _DECODE}),
    "/baton.v1.Worker/Status": frozenset({_ROUTER, _OPERATOR}),
    "/baton.v1.Worker/FlushCache": frozenset({_ROUTER, _OPERATOR}),
    "/baton.v1.Worker/Audit": frozenset({_OPERATOR}),
    "/baton.v1.Worker/StartProfile": frozenset({_ROUTER, _OPERATOR}),
    "/baton.v1.Worker/StopProfile": frozenset({_ROUTER, _OPERATOR}),
    "/baton.v1.Worker/Metrics": frozenset({_ROUTER}),
    "/grpc.health.v1.Health/Check": frozenset(ProcessRole),
    "/grpc.health.v1.Health/List": frozenset(ProcessRole),
    "/grpc.health.v1.Health/Watch": frozenset(ProcessRole),
}
"""The roles that may call each RPC."""

_ROLES = {_PREFILL: PREFILL, _DECODE: DECODE}
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
_Handler = Callable[[Any, aio.ServicerContext], Any]


def caller(context: aio.ServicerContext) -> Identity | None:
    """Return the identity that the caller has proved by its certificate; None if it has none."""
    proven: Mapping[str, Iterable[bytes]] = context.auth_context()
    if list(proven.get("transport_security_type", ())) != [b"ssl"]:
        return None
    return identity_in([name.decode(errors="replace") for name in proven.get("peer_dns", ())])


def check_claim(context: aio.ServicerContext, hello: Hello) -> None:
    """Raise ApiError unless the caller is the process that its Hello says it is."""
    proven = caller(context)
    worker = hello.worker
    if proven is not None and proven.role in _ROLES:
        claimed = (worker.worker_id, worker.role) == (proven.name, _ROLES[proven.role])
        claimed &= proven.role is not _DECODE or worker.rank == number_in(proven.name)
    else:
        claimed = proven is not None and hello.router_id.split("/")[0] == proven.name
    if not claimed:
        raise ApiError(
            ErrorCode.PERMISSION_DENIED, "this Hello is not that of the certificate's owner"
        )


class AccessInterceptor(aio.ServerInterceptor):  # type: ignore[misc]  # has no stubs
    """An interceptor that ends calls of processes that `CALLERS` does not name, or that were
    revoked."""

    def __init__(self, credentials: Credentials) -> None:
        """credentials: of the server; only processes of its cluster may call at all."""
        self._credentials = credentials

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        roles = CALLERS.get(handler_call_details.method, frozenset())
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guarded(handler, roles)

    def _guarded(
        self, handler: grpc.RpcMethodHandler, roles: frozenset[ProcessRole]
    ) -> grpc.RpcMethodHandler:
        """Return the handler with a check of the caller before it, whatever its kind."""
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        serve: _Handler = getattr(handler, kind)
        make = getattr(grpc, f"{kind}_rpc_method_handler")

        async def call(request: Any, context: aio.ServicerContext) -> Any:
            await self._admit(context, roles)
            return await serve(request, context)

        async def stream(request: Any, context: aio.ServicerContext) -> Any:
            await self._admit(context, roles)
            async for reply in serve(request, context):
                yield reply

        guarded = stream if inspect.isasyncgenfunction(serve) else call
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    async def _admit(self, context: aio.ServicerContext, roles: frozenset[ProcessRole]) -> None:
        proven = caller(context)
        if proven is None or not self._may_call(context, proven, roles):
            error = ApiError(ErrorCode.PERMISSION_DENIED, "this certificate does not open this RPC")
            await abort(context, error_to_proto(error))

    def _may_call(
        self, context: aio.ServicerContext, proven: Identity, roles: frozenset[ProcessRole]
    ) -> bool:
        # Noted before it is checked: a revocation just now ends the connection by the note.
        self._credentials.connections.note(context.peer(), proven.dns_name)
        ours = proven.cluster == self._credentials.identity.cluster
        return ours and proven.role in roles and not self._credentials.revokes(proven.dns_name)
