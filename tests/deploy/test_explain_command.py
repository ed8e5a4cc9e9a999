"""`baton explain` asks several routers, tells the newest request, and says once what all say."""

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from baton.deploy.client.router_options import RouterAddress
from baton.deploy.commands import explain as command
from baton.deploy.errors import DeployError, RouterRefused

UNKNOWN = {"error": {"message": "no request 'mine' is known here: a router keeps what runs"}}
DOWN = "http://127.0.0.1:1"


def explanation(number: int, age_s: float, *same_name: str) -> dict[str, Any]:
    """Return what a router says of a request that waits."""
    return {
        "request_id": f"{number:032x}", "router": f"router-{number}", "status": "waiting",
        "outcome": None, "prompt_tokens": 2, "output_tokens": 0, "timings": None, "computed": None,
        "lost_states": [], "attempts": [], "age_s": age_s, "same_name": list(same_name),
    }  # fmt: skip


@contextmanager
def routers(*answers: tuple[int, object]) -> Iterator[list[str]]:
    """Yield URLs of servers that give these statuses and JSON bodies to `GET /explain/mine`."""
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), _handler(status, json.dumps(body).encode()))
        for status, body in answers
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(status: int, body: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/explain/mine"
            self.send_response(status if known else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass  # not on the tests' output

    return Handler


def said_by(monkeypatch: pytest.MonkeyPatch, urls: Sequence[str], *words: str) -> str:
    """Return what the command prints of a cluster with these routers."""
    addresses = [RouterAddress(url) for url in urls]
    monkeypatch.setattr(command, "routers_from", lambda *given: addresses)
    return CliRunner().invoke(command.explain, ["mine", *words], catch_exceptions=False).output


def test_the_newest_of_several_routers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [explanation(1, 7.25, "older"), explanation(2, 2.5), explanation(3, 4.0)]
    with routers((404, UNKNOWN), *((200, each) for each in told)) as urls:
        text = said_by(monkeypatch, [DOWN, *urls])
        found = json.loads(said_by(monkeypatch, urls, "--json"))
    others = [f"{3:032x}", f"{1:032x}", "older"]
    assert found == explanation(2, 2.5, *others)
    assert text.startswith(f"request {2:032x}, router-2, waiting, arrived 2.5 s ago\n")
    assert f"others of this name: {', '.join(others)}" in text


def test_what_all_routers_say_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = {"error": {"message": "the key may not"}}
    with routers((404, UNKNOWN), (404, UNKNOWN), (403, denied)) as urls:
        with pytest.raises(DeployError) as alone:
            said_by(monkeypatch, urls[1:2])
        with pytest.raises(DeployError) as error:
            said_by(monkeypatch, [urls[0], DOWN, *urls[1:]])
    why = UNKNOWN["error"]["message"]
    assert str(alone.value) == f"{urls[1]}/explain/mine answers 404: {why}"
    first, second, third = str(error.value).splitlines()
    assert first == f"{urls[0]}/explain/mine answers 404: {why} (2 routers say so)"
    assert second.startswith(f"no router answers at {DOWN}: ")
    assert third == f"{urls[2]}/explain/mine answers 403: the key may not"


@pytest.mark.parametrize("body", [[1], "text"])
def test_what_is_no_router_is_named(monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    with routers((200, body)) as (url,), pytest.raises(DeployError) as error:
        said_by(monkeypatch, [url])
    assert str(error.value) == (
        f"what answers at {url} is no router: /explain/mine is no JSON object"
    )


def test_a_refusal_can_be_sent_between_processes() -> None:
    sent = pickle.loads(pickle.dumps(RouterRefused("all of it", 404, "why")))
    assert (str(sent), sent.http_status, sent.reason) == ("all of it", 404, "why")
