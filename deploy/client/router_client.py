"""A client of a router's HTTP endpoints: the only one that commands have."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from baton.deploy.client.trust import Trust, unanswered
from baton.deploy.errors import NotRunning, RouterRefused

DEADLINE_S = 10.0
_JSON = {"Content-Type": "application/json"}


def key_header(api_key: str) -> dict[str, str]:
    """Return the header that carries an API key; none for an empty one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


class RouterClient:
    """A client of one router.

    url: without a path, as in http://127.0.0.1:8000; empty for a router that has none yet. api_key:
    empty for a router that needs none. trust: None for this machine's authorities.
    """

    def __init__(self, url: str, api_key: str = "", trust: Trust | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = key_header(api_key)
        self._trust = trust

    def server_info(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Return the router's `/server_info`. Raises NotRunning."""
        return self._object("/server_info", deadline_s)

    def metrics(self, worker_id: str = "") -> str:
        """Return the metrics of a worker, or the router's own. Raises NotRunning."""
        return self._call(f"/workers/{worker_id}/metrics" if worker_id else "/metrics").decode()

    def explain(self, request_id: str) -> dict[str, Any]:
        """Return why a request was placed as it was. Raises NotRunning, RouterRefused if the router
        knows no such request.
        """
        return self._object(f"/explain/{quote(request_id, safe='')}")

    def flush_cache(self) -> None:
        """Empty every worker's prefix cache once it is idle. Raises NotRunning on failure."""
        self._call("/flush_cache", method="POST")

    def _object(self, path: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Return the JSON object at a path. Raises NotRunning, also for anything else there."""
        body = self._call(path, deadline_s=deadline_s)
        try:
            found = json.loads(body)
        except ValueError as err:
            raise NotRunning(f"what answers at {self.url} is no router: {err}") from err
        if not isinstance(found, dict):
            raise NotRunning(f"what answers at {self.url} is no router: {path} is no JSON object")
        return found

    @contextmanager
    def reply(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str | None = None,
        silence_s: float = DEADLINE_S,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the reply to a request, to be read here.

        body: JSON; then the method is POST, if none is given. silence_s: the longest pause of the
        router. Raises NotRunning, RouterRefused.
        """
        if not self.url:
            raise NotRunning("the router has not started yet")
        headers = self._headers if body is None else {**self._headers, **_JSON}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        context = None if self._trust is None else self._trust()
        try:
            with urllib.request.urlopen(request, timeout=silence_s, context=context) as reply:
                yield reply
        except urllib.error.HTTPError as err:
            reason = _reason(err.read())
            told = reason
            if err.code == HTTPStatus.UNAUTHORIZED:  # who types a command sends no headers
                told = f"{reason.partition(';')[0]}; give one by --api-key or BATON_API_KEY"
            raise RouterRefused(
                f"{self.url}{path} answers {err.code}: {told}", err.code, reason
            ) from err
        except (OSError, http.client.HTTPException) as err:  # the router may die while it answers
            raise unanswered(self.url, err) from err

    def _call(self, path: str, method: str = "GET", deadline_s: float = DEADLINE_S) -> bytes:
        with self.reply(path, method=method, silence_s=deadline_s) as reply:
            return reply.read()


def _reason(body: bytes) -> str:
    """Return the message of an error's body."""
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
