"""uvicorn, run on a loop that is ours and told to stop by us."""

import asyncio
import socket
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette

from baton.router.errors import ConfigError


class HttpServer:
    """uvicorn's own `serve` would take over the process's signals; its parts do not."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        """Binds at once: raises ConfigError where it cannot. Port 0: any free one."""
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
        )
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listening when it returns."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])
        self._loop = asyncio.create_task(self._server.main_loop())

    async def stop(self, grace_s: float) -> None:
        """Answers that are still going out have `grace_s`, then their connections are cut."""
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
