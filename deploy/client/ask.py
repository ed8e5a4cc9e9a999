"""One streamed answer over HTTP."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from baton.deploy.client.router_client import key_header
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import unanswered
from baton.deploy.errors import DeployError, NotRunning

SILENCE_S = 600.0  # a long prompt's first token may take minutes on a CPU


def stream_text(
    router: RouterAddress, body: Mapping[str, object], *, chat: bool
) -> Iterator[tuple[str, Any]]:
    """Yield ("text", new text) for each part, then ("end", the event with `usage` and `timings`).

    Raises NotRunning, or DeployError with the server's message.
    """
    path = "/v1/chat/completions" if chat else "/v1/completions"
    for event in _events(router, path, body):
        if "error" in event:
            raise DeployError(f"the answer broke off: {event['error']['message']}")
        for choice in event["choices"]:
            text = choice["delta"].get("content") if chat else choice["text"]
            if text:
                yield "text", text
        if event.get("timings"):
            yield "end", event


def _events(
    router: RouterAddress, path: str, body: Mapping[str, object]
) -> Iterator[dict[str, Any]]:
    url = f"{router.url.rstrip('/')}{path}"
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        url,
        json.dumps(wanted).encode(),
        {"Content-Type": "application/json", **key_header(router.api_key)},
    )
    context = None if router.trust is None else router.trust()
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_S, context=context) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
                if line.startswith(b"data: [DONE]"):
                    return
        raise NotRunning(f"the answer broke off: its stream from {url} ended before it did")
    except urllib.error.HTTPError as err:
        raise DeployError(_complaint(err)) from err
    except (OSError, http.client.HTTPException) as err:  # the router may die while it answers
        raise unanswered(url, err) from err


def _complaint(err: urllib.error.HTTPError) -> str:
    text = err.read().decode(errors="replace")
    try:
        return f"refused ({err.code}): {json.loads(text)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"refused ({err.code}): {text[:300]}"
