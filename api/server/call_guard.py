"""Deadlines and bounds for gRPC calls of clients, which gRPC itself does not have."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from baton.api.access.access import key_of_call
from baton.api.access.client_limits import ClientLimits, Refusal, client_of
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_gate import KeyGate
from baton.api.access.key_guesses import address_of_peer
from baton.api.call_log import CallLog
from baton.api.errors import too_many
from baton.api.server.busy_connections import BusyConnections
from baton.api.server.idle_calls import IdleCall, IdleCalls
from baton.api.server.open_calls import OpenCalls
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.rpc.errors import refuse

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
"""The one method that is answered while a server sheds load."""
_INFERENCE = "/baton.v1.Inference/"
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no stubs
    """An interceptor that bounds the calls, one client's connections with calls, and their times.

    A call whose message has not come is one of `_silent`. Then one of `Inference` is answered as
    one of `_open`, any other (health, reflection) as one of `_watching`.
    """

    def __init__(
        self,
        limits: ClientLimits,
        metrics: ClientMetrics,
        busy: BusyConnections,
        calls: CallLog | None = None,
        keys: KeyGate | None = None,
    ) -> None:
        """calls: where calls that are refused here are logged; None: nowhere. keys: those that
        `KeyInterceptor` asks for; None serves everybody."""
        self._limits = limits
        self._metrics = metrics
        self._busy = busy
        self._calls = calls
        self._keys = keys
        self._open = OpenCalls(limits)
        self._silent = IdleCalls(limits.idle_grpc_streams, limits.idle_grpc_streams_of_client)
        self._watching = IdleCalls(limits.idle_grpc_streams, limits.idle_grpc_streams_of_client)
        metrics.grpc_streams.set_function(
            lambda: len(self._open) + len(self._silent) + len(self._watching)
        )

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        # One that reads no message refuses the call.
        if handler is None or handler.request_deserializer is None:
            return handler
        serve = self._answer if handler_call_details.method.startswith(_INFERENCE) else self._watch
        return grpc.stream_stream_rpc_method_handler(
            self._guarded(handler_call_details.method, partial(serve, handler)),
            response_serializer=handler.response_serializer,
        )

    def _guarded(
        self,
        method: str,
        serve: Callable[[str, grpc.aio.ServicerContext], Awaitable[ApiError | None]],
    ) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
        """Return a handler that ends the call with the error that `serve` returns, if any.

        Each handler reads the call's messages itself: gRPC waits for ever for a message that a
        method needs, and answers bytes that are no message with INTERNAL.
        """

        async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
            try:
                error = await serve(method, context)
            except ApiError as gone:  # the key was removed a moment ago
                error = gone
            if error is not None:  # it may wait for ever for room, so it is counted no more
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.write_s):
                        await refuse(context, error)

        return handle

    async def _answer(
        self, handler: Any, method: str, context: grpc.aio.ServicerContext
    ) -> ApiError | None:
        """Serve a call of `Inference`. Return the error that ends it, if any."""
        holders, peer = self._holders(method, context), context.peer()
        error = self._refusal(holders, peer)
        if error is None:
            found = await self._first_message(handler, context, holders, self._limits.body_s)
            # Other calls may have begun while its message came.
            error = found if isinstance(found, ApiError) else self._refusal(holders, peer)
        if error is not None:
            if self._calls is not None:
                self._calls.refused_rpc(context.invocation_metadata(), method, error)
            return error
        answer = handler.unary_stream or _one_reply(handler.unary_unary)
        with self._open.counted(holders), self._busy.counted(peer):
            return await self._reply(answer(found, context), context)  # it logs the call

    async def _watch(
        self, handler: Any, method: str, context: grpc.aio.ServicerContext
    ) -> ApiError | None:
        """Serve a call of health or reflection. Return the error that ends it, if any."""
        holders = self._holders(method, context)
        error = None if method == HEALTH_CHECK else self._of_connection(context.peer())
        if error is not None:
            return error
        first = await self._first_message(handler, context, holders, self._limits.header_s)
        if isinstance(first, ApiError):
            return first
        idle_s, call = self._limits.grpc_idle_s, None
        try:
            async with asyncio.timeout(idle_s) as deadline:
                with self._watching.place(holders, deadline) as call:
                    replies = self._replies(handler, first, context, call)
                    return await self._reply(replies, context, call)
        except TimeoutError:
            if call is not None and call.gave_way:
                return self._gave_way()
            return ApiError(
                ErrorCode.DEADLINE_EXCEEDED, f"the call was idle for {idle_s:g} s; call again"
            )

    def _replies(
        self, handler: Any, first: object, context: grpc.aio.ServicerContext, call: IdleCall
    ) -> AsyncIterator[object]:
        """Return what the method of a call of health or reflection answers."""
        if handler.stream_stream is None:
            answer = handler.unary_stream or _one_reply(handler.unary_unary)
            found: AsyncIterator[object] = answer(first, context)
            return found

        async def messages() -> AsyncIterator[object]:
            yield first
            while (raw := await context.read()) is not grpc.aio.EOF:
                self._touch(call)
                yield handler.request_deserializer(raw)

        asked: AsyncIterator[object] = handler.stream_stream(messages(), context)
        return asked

    async def _first_message(
        self,
        handler: Any,
        context: grpc.aio.ServicerContext,
        holders: Collection[str],
        limit_s: float,
    ) -> object | ApiError:
        """Return the call's message, or the error that ends the call."""
        call = None
        try:
            async with asyncio.timeout(limit_s) as deadline:
                with self._silent.place(holders, deadline) as call:
                    raw = await context.read()
        except TimeoutError:
            if call is not None and call.gave_way:
                return self._gave_way()
            return self._late(Refusal.BODY_TIME, f"no message came within {limit_s:g} s")
        if raw is grpc.aio.EOF:
            return ApiError(ErrorCode.INVALID_REQUEST, "the call has no message; send one")
        try:
            message: object = handler.request_deserializer(raw)
        except DecodeError as error:
            return ApiError(
                ErrorCode.INVALID_REQUEST,
                f"the bytes are no message of this method: {error}; see proto/inference.proto",
            )
        return message

    async def _reply(
        self, answer: Any, context: grpc.aio.ServicerContext, call: IdleCall | None = None
    ) -> ApiError | None:
        """Send the replies that `answer` yields. Return the error of a client that does not read
        them. call: the idle one that they are said on."""
        limits = self._limits
        async with aclosing(answer) as replies:
            async for reply in replies:
                try:
                    async with asyncio.timeout(limits.write_s):
                        await context.write(reply)
                except TimeoutError:
                    return self._late(
                        Refusal.SLOW_READER,
                        f"the answer was not read for {limits.write_s:g} s; read it as it comes",
                    )
                if call is not None:
                    self._touch(call)
        return None

    def _touch(self, call: IdleCall) -> None:
        """Let a call be idle for the whole time again."""
        self._watching.touch(call)
        if not call.gave_way and not call.deadline.expired():
            call.deadline.reschedule(asyncio.get_running_loop().time() + self._limits.grpc_idle_s)

    def _gave_way(self) -> ApiError:
        self._metrics.refused(Refusal.STREAMS)
        most = f"{self._limits.idle_grpc_streams_of_client} calls of one client"
        return too_many(ErrorCode.OVERLOADED, "too many calls ask for nothing", most)

    def _late(self, reason: Refusal, message: str) -> ApiError:
        self._metrics.refused(reason)
        return ApiError(ErrorCode.DEADLINE_EXCEEDED, message)

    def _holders(self, method: str, context: grpc.aio.ServicerContext) -> list[str]:
        """Return the names under which a call is counted."""
        found = [f"address {client_of(address_of_peer(context.peer()))}"]
        key = key_of_call(method, context.invocation_metadata(), self._keys)
        return found if key is None else [*found, f"key {key}"]

    def _refusal(self, holders: Collection[str], peer: str) -> ApiError | None:
        """Return the error for one call more that is to be answered, or None if it may begin."""
        refused = self._open.refusal(holders)
        if refused is None:
            return self._of_connection(peer)
        self._metrics.refused(Refusal.STREAMS)
        return refused

    def _of_connection(self, peer: str) -> ApiError | None:
        """Return the error for a call on one connection too many of its client, or None."""
        refused = self._busy.refusal(peer)
        if refused is not None:
            self._metrics.refused(Refusal.CONNECTIONS_OF_CLIENT)
        return refused


def _one_reply(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler of one reply as one of many."""

    async def replies(request: object, context: object) -> AsyncIterator[object]:
        yield await answer(request, context)

    return replies
