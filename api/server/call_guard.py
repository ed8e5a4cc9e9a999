"""Deadlines and a bound for gRPC calls of clients, which gRPC itself does not have."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import CallLog, Metadata
from baton.api.errors import too_many
from baton.api.server.busy_connections import BusyConnections
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.rpc.errors import refuse

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
"""The one method that is answered while a server sheds load."""
_INFERENCE = "/baton.v1.Inference/"
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # has no stubs
    """An interceptor that bounds the open calls, one client's connections with calls, and the time
    of `Inference`."""

    def __init__(
        self,
        limits: ClientLimits,
        metrics: ClientMetrics,
        busy: BusyConnections,
        calls: CallLog | None = None,
    ) -> None:
        """calls: where calls that are refused here are logged; None: nowhere."""
        self._limits = limits
        self._metrics = metrics
        self._busy = busy
        self._calls = calls
        self._open = 0

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        method = handler_call_details.method
        if self._open >= self._limits.grpc_streams and method != HEALTH_CHECK:
            self._metrics.refused(Refusal.STREAMS)
            found, most = f"{self._open} calls are open", f"{self._limits.grpc_streams} calls"
            error = too_many(ErrorCode.OVERLOADED, found, most)
            self._log(handler_call_details.invocation_metadata, method, error)
            return refusing(error)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        answer = handler.unary_stream
        if handler.unary_unary is not None:
            answer = _one_reply(handler.unary_unary)
        if method.startswith(_INFERENCE) and answer is not None:  # None: it refuses the call
            return grpc.stream_stream_rpc_method_handler(
                self._timed(method, answer, handler.request_deserializer),
                response_serializer=handler.response_serializer,
            )
        return handler if method == HEALTH_CHECK else self._bounded(handler)

    def _timed(
        self, method: str, answer: Callable[..., Any], parse: Callable[[bytes], object]
    ) -> Callable[..., Any]:
        """Return `answer`, a handler of one message and many replies, with deadlines.

        gRPC waits for ever for a call's message, and for a client that does not read. It also
        answers bytes that are no message with INTERNAL, so `parse` is called here.
        """

        async def serve(_: object, context: grpc.aio.ServicerContext) -> None:
            begun = False
            refused = self._of_client(context)
            if refused is None:
                with self._counted(context):
                    try:
                        request = await self._message(parse, context)
                    except ApiError as error:
                        refused = error
                    else:
                        begun = True  # from here on the method logs the call
                        refused = await self._reply(answer(request, context), context)
            if refused is not None and not begun:
                self._log(context.invocation_metadata(), method, refused)
            if refused is not None:  # it may wait for ever for room, so it is counted no more
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.write_s):
                        await refuse(context, refused)

        return serve

    async def _message(
        self, parse: Callable[[bytes], object], context: grpc.aio.ServicerContext
    ) -> object:
        """Return the call's message. Raises `ApiError`."""
        limits = self._limits
        try:
            async with asyncio.timeout(limits.body_s):
                raw = await context.read()
        except TimeoutError:
            raise self._late(
                Refusal.BODY_TIME, f"no message came within {limits.body_s:g} s"
            ) from None
        if raw is grpc.aio.EOF:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the call has no message; send one")
        try:
            return parse(raw)
        except DecodeError as error:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"the bytes are no message of this method: {error}; see proto/inference.proto",
            ) from error

    async def _reply(self, answer: Any, context: grpc.aio.ServicerContext) -> ApiError | None:
        """Send the replies that `answer` yields. Return the error of a client that does not read
        them."""
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
        return None

    def _log(self, metadata: Metadata, method: str, error: ApiError) -> None:
        if self._calls is not None:
            self._calls.refused_rpc(metadata, method, error)

    def _late(self, reason: Refusal, message: str) -> ApiError:
        self._metrics.refused(reason)
        return ApiError(ErrorCode.DEADLINE_EXCEEDED, message)

    def _bounded(self, handler: Any) -> Any:
        """Return a handler whose calls are counted while they are open."""
        (kind,) = (
            name
            for name in ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
            if getattr(handler, name) is not None
        )
        inner = getattr(handler, kind)

        async def stream(request: object, context: Any) -> AsyncIterator[object]:
            await self._admit(context)
            with self._counted(context):
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply

        async def call(request: object, context: Any) -> object:
            await self._admit(context)
            with self._counted(context):
                return await inner(request, context)

        outer = stream if inspect.isasyncgenfunction(inner) else call
        return handler._replace(**{kind: outer})

    def _of_client(self, context: grpc.aio.ServicerContext) -> ApiError | None:
        """Return the error for a call on one connection too many of its client, or None."""
        refused = self._busy.refusal(context.peer())
        if refused is not None:
            self._metrics.refused(Refusal.CONNECTIONS_OF_CLIENT)
        return refused

    async def _admit(self, context: grpc.aio.ServicerContext) -> None:
        refused = self._of_client(context)
        if refused is not None:
            await refuse(context, refused)

    @contextmanager
    def _counted(self, context: grpc.aio.ServicerContext) -> Iterator[None]:
        peer = context.peer()
        self._busy.begin(peer)
        self._open += 1
        self._metrics.grpc_streams.set(self._open)
        try:
            yield
        finally:
            self._busy.end(peer)
            self._open -= 1
            self._metrics.grpc_streams.set(self._open)


def _one_reply(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler of one reply as one of many."""

    async def replies(request: object, context: object) -> AsyncIterator[object]:
        yield await answer(request, context)

    return replies


def refusing(error: ApiError) -> grpc.RpcMethodHandler:
    """Return a handler that ends a call of any kind with `error`, before it reads a message."""

    async def end(_: object, context: grpc.aio.ServicerContext) -> None:
        await refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(end)
