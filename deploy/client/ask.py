"""One streamed answer over HTTP."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
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
    client = RouterClient(router.url, router.api_key, router.trust)
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with client.reply(path, json.dumps(wanted).encode(), silence_s=SILENCE_S) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])
            if line.startswith(b"data: [DONE]"):
                return
    raise NotRunning(f"the answer broke off: its stream from {client.url} ended before it did")
