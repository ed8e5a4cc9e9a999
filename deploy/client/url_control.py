"""Asking a cluster by the URL of one of its routers."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.messages.control import DESCRIBE, SILENCE_S, STOP, answer_in, request_line
from baton.deploy.messages.start_progress import Silent, StartProgress

_CONNECT_S = 5.0


class UrlControl:
    """A client of whoever runs the cluster of one router, which passes requests on."""

    def __init__(self, router: RouterAddress) -> None:
        self._client = RouterClient(router.url, router.api_key, router.trust)

    @property
    def title(self) -> str:
        return f"the cluster at {self._client.url}"

    @property
    def stopped(self) -> str:
        """The message once `alive` is False."""
        return f"{self.title} stops: its router takes no connections any more"

    @property
    def remedy(self) -> str:
        return "wait"

    def ask(
        self, name: str, arguments: Mapping[str, object], progress: StartProgress
    ) -> Mapping[str, object]:
        """Send a request and return its answer. Raises NotRunning, or DeployError with the
        cluster's message.
        """
        line = request_line(name, arguments)
        with self._client.reply("/control", line, silence_s=SILENCE_S) as reply:
            return answer_in(reply, progress)

    def describe(self) -> Mapping[str, object]:
        """Return what the supervisor says of itself and of the members. Raises DeployError."""
        return self.ask(DESCRIBE, {}, Silent())

    def stop(self) -> None:
        """Ask the cluster to stop, and do not wait for it."""
        self.ask(STOP, {}, Silent())

    def alive(self) -> bool:
        """Return whether the router still takes connections."""
        found = urlsplit(self._client.url)
        port = found.port or (443 if found.scheme == "https" else 80)
        with suppress(OSError):
            socket.create_connection((found.hostname or "", port), _CONNECT_S).close()
            return True
        return False
