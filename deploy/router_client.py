"""The router's HTTP side, as commands ask it; streams are the clients' own business."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from baton.deploy.errors import NotRunning

DEADLINE_S = 10.0


class RouterClient:
    """`url` without a path, as in http://127.0.0.1:8000."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def server_info(self) -> dict[str, Any]:
        """Raises NotRunning."""
        body = self._call("/server_info")
        try:
            info: dict[str, Any] = json.loads(body)
        except ValueError as err:
            raise NotRunning(f"what answers at {self.url} is no router: {err}") from err
        return info

    def flush_cache(self) -> None:
        """Empty every worker's prefix cache, once idle. Raises NotRunning where it cannot."""
        self._call("/flush_cache", method="POST")

    def _call(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
                body: bytes = reply.read()
        except urllib.error.HTTPError as err:
            detail = err.read().decode(errors="replace")[:300]
            raise NotRunning(f"{self.url}{path} answers {err.code}: {detail}") from err
        except (OSError, http.client.HTTPException) as err:  # it may also die while it answers
            raise NotRunning(f"no router answers at {self.url}: {err}") from err
        return body
