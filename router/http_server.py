"""uvicorn on the router's event loop."""

import asyncio
import socket
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette

from baton.core.errors import ConfigError
from baton.rpc.client_tls import ClientTls


class HttpServer:
    """A uvicorn server that is started and stopped by calls.

    uvicorn's own `serve` would install signal handlers, so its steps are called one by one.
    """

    def __init__(self, app: Starlette, host: str, port: int, tls: ClientTls | None = None) -> None:
        """Bind the address. Raises ConfigError if that fails. Port 0 is any free port.

        tls: None serves plain HTTP.
        """
        self._tls = tls
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
        )
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        config = self._server.config
        config.load()
        config.ssl = None if self._tls is None else self._tls.http_context()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])
        self._loop = asyncio.create_task(self._server.main_loop())

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, give running answers `grace_s` to end, then close their connections."""
        self._server.should_exit = True
        if self._loop is None:
            self._socket.close()
            return
        await self._loop
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._server.shutdown(sockets=[self._socket])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen for HTTP on {host} port {port}: {error.strerror}; name another "
            "address, or port 0 for any free one"
        ) from error
