"""Redirects that leave the client at the server that it asked."""

from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RelativeRedirects:
    """An ASGI application whose redirects name a path alone.

    Starlette makes their address of the header `Host`, which may name any other server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_relative(message: Message) -> None:
            if message["type"] == "http.response.start" and 300 <= message["status"] < 400:
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    headers["location"] = _path_of(headers["location"])
            await send(message)

        await self._app(scope, receive, send_relative)


def _path_of(address: str) -> str:
    """Return the path and query of a URL. Two slashes at its beginning would name a host."""
    parts = urlsplit(address)
    path = "/" + parts.path.lstrip("/")
    return f"{path}?{parts.query}" if parts.query else path
