"""Asking a cluster by the URL of one of its routers."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from baton.deploy.client.router_client import key_header
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import unanswered
from baton.deploy.errors import DeployError
from baton.deploy.messages.control import DESCRIBE, SILENCE_S, STOP, answer_in, request_line
from baton.deploy.messages.start_progress import Silent, StartProgress

_CONNECT_S = 5.0


class UrlControl:
    """A client of whoever runs the cluster of one router, which passes requests on."""

    def __init__(self, router: RouterAddress) -> None:
        self._router = router

    @property
    def title(self) -> str:
        return f"the cluster at {self._router.url}"

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
        url = f"{self._router.url.rstrip('/')}/control"
        headers = {"Content-Type": "application/json", **key_header(self._router.api_key)}
        request = urllib.request.Request(url, request_line(name, arguments), headers)
        context = None if self._router.trust is None else self._router.trust()
        try:
            with urllib.request.urlopen(request, timeout=SILENCE_S, context=context) as reply:
                return answer_in(reply, progress)
        except urllib.error.HTTPError as err:
            raise DeployError(_complaint(err)) from err
        except (OSError, http.client.HTTPException) as err:
            raise unanswered(self._router.url, err) from err

    def describe(self) -> Mapping[str, object]:
        """Return what the supervisor says of itself and of the members. Raises DeployError."""
        return self.ask(DESCRIBE, {}, Silent())

    def stop(self) -> None:
        """Ask the cluster to stop, and do not wait for it."""
        self.ask(STOP, {}, Silent())

    def alive(self) -> bool:
        """Return whether the router still takes connections."""
        found = urlsplit(self._router.url)
        port = found.port or (443 if found.scheme == "https" else 80)
        with suppress(OSError):
            socket.create_connection((found.hostname or "", port), _CONNECT_S).close()
            return True
        return False


def _complaint(err: urllib.error.HTTPError) -> str:
    text = err.read().decode(errors="replace")
    try:
        return f"refused ({err.code}): {json.loads(text)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"refused ({err.code}): {text[:300]}"
