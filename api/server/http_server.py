"""uvicorn on the router's event loop."""

import asyncio
import socket
from collections.abc import Awaitable
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.api.server.acceptor import Acceptor
from baton.api.server.buffered_protocol import BufferedReads
from baton.api.server.client_guard import ClientGuard
from baton.api.server.connection_table import Connection, ConnectionTable
from baton.api.server.http_protocol import GuardedHttp
from baton.api.server.stream_limit import StreamLimit
from baton.core.errors import ConfigError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.rpc.client_tls import ClientTls

BACKLOG = 2048
LEAVE_S = 1.0
"""The time in which clients ask once more on connections that a leaving server has accepted."""


class HttpServer:
    """A uvicorn server that is started and stopped by calls.

    uvicorn's own `serve` would install signal handlers, so its steps are called one by one.
    """

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        owner: ProcessSupervisor,
        tls: ClientTls | None = None,
        guard: ClientGuard | None = None,
        shared: int | None = None,
    ) -> None:
        """Bind the address. Raises ConfigError if that fails. Port 0 is any free port.

        tls: None serves plain HTTP. guard: None has the default limits. shared: the descriptor of a
        socket that is bound there already; None: there is none.
        """
        self._tls = tls
        self._owner = owner
        guard = guard or ClientGuard.make()
        self._limits = guard.limits
        self._calls = guard.calls
        self._table = ConnectionTable(guard.limits, guard.http_connections, guard.metrics)
        own = bound(host, port) if shared is None else socket.socket(fileno=shared)
        self._socket = _listening(own, host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._last_replies(StreamLimit(app, guard.limits, guard.metrics, guard.calls)),
                interface="asgi3",  # it would guess by the kind of function
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                # uvicorn believes every client on loopback, which could choose its address.
                proxy_headers=bool(guard.limits.forwarded_allow_ips),
                forwarded_allow_ips=guard.limits.forwarded_allow_ips,
            )
        )
        self._acceptor: Acceptor | None = None  # once started
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to accept connections."""
        config = self._server.config
        config.load()
        config.ssl = None if self._tls is None else self._tls.http_context()
        self._server.lifespan = config.lifespan_class(config)
        self._acceptor = Acceptor(
            self._socket, self._table, self._protocol, self._limits.header_s, config.ssl
        )
        self._acceptor.start()
        self._server.servers = [self._acceptor]  # type: ignore[list-item]  # it has what is called
        self._server.started = True
        # ANEW: both look at what is there, again and again, and remember nothing.
        self._tasks = [
            spawn(
                self._server.main_loop,
                self._owner,
                OnFailure.ANEW,
                "HTTP server",
                may_return=True,  # at the stop
            ),
            spawn(self._check_deadlines, self._owner, OnFailure.ANEW, "deadlines of HTTP clients"),
        ]

    async def leave(self) -> None:
        """Leave new connections to whoever listens on the same socket next, and give those that
        stand `LEAVE_S` to ask once more: each is closed behind its next reply.
        """
        self._leaving = True
        if self._acceptor is not None:
            self._acceptor.pause()
            await asyncio.sleep(LEAVE_S)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, give running answers `grace_s` to end, then close their connections."""
        self._server.should_exit = True
        if not self._tasks:
            self._socket.close()
            return
        for task in self._tasks:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._server.shutdown(sockets=[self._socket])

    def _protocol(self, place: Connection) -> BufferedReads:
        server = self._server
        http = GuardedHttp(
            place,
            self._table,
            self._limits,
            self._calls,
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        return BufferedReads(http, self._table.buffer)

    def _last_replies(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with replies that close their connections once this server leaves."""

        def reply(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            async def send_last(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                await send(message)

            return app(scope, receive, send_last if self._leaving else send)

        return reply

    async def _check_deadlines(self) -> None:
        limits = self._limits
        shortest = min(limits.header_s, limits.body_s, limits.write_s)
        while True:
            await asyncio.sleep(min(shortest / 4, 1.0))
            self._table.check()


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises ConfigError. Port 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise _cannot_listen(host, port, error) from error
    return made


def _listening(made: socket.socket, host: str, port: int) -> socket.socket:
    """Return the socket, listening. Raises ConfigError where another process listens there."""
    try:
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise _cannot_listen(host, port, error) from error
    return made


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen for HTTP on {host} port {port}: {error.strerror}; name another "
        "address, or port 0 for any free one"
    )
