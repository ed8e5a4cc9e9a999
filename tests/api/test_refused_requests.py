"""A request that a guard has refused goes no further: its body is not read, no answer begins."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from starlette.types import ASGIApp, Message

from baton.api.access.browser_guard import BrowserPolicy
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.api.dispatch import GENERATING
from baton.api.http import make_app
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

INFER, METRICS, SPENT = new_key(), new_key(), new_key()
SENT = {"host": "127.0.0.1", "content-type": "application/json", "content-length": "9"}
OPEN = {"authorization": f"Bearer {INFER}"}


@dataclass
class Reply:
    """The reply of an application, with a note on the body: was it read?"""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    read: bool = False


async def post(app: ASGIApp, path: str, method: str = "POST", **headers: str) -> Reply:
    reply = Reply()

    async def receive() -> Message:
        reply.read = True
        return {"type": "http.request", "body": b"not JSON!", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): text.decode() for name, text in message["headers"]}

    given = SENT | {name.replace("_", "-"): text for name, text in headers.items()}
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
        "headers": [(name.encode(), text.encode()) for name, text in given.items() if text],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    return reply


def guarded(backend: FakeBackend, text: TextService, keys: KeyGate | None = None) -> ASGIApp:
    policy = BrowserPolicy(frozenset({"127.0.0.1"}))
    return make_app(
        backend, text, more_routes=sglang_routes(backend, text), browsers=policy, keys=keys
    )


@pytest.fixture
def gate(tmp_path: Path) -> KeyGate:
    path, infer = tmp_path / "keys.json", frozenset({KeyScope.INFER})
    write_keys(
        path,
        [
            Key("infer", digest_of(INFER), infer),
            Key("metrics", digest_of(METRICS), frozenset({KeyScope.METRICS})),
            Key("spent", digest_of(SPENT), infer, requests_per_minute=1),
        ],
    )
    return KeyGate(Keyring(path))


REFUSED = {
    "a request id with spaces": ({"x_request_id": "two words"}, 400),
    "a page of another site": ({"origin": "https://evil.example"}, 403),
    "a form of another site": ({"sec_fetch_site": "cross-site"}, 403),
    "a name that an attacker points here": ({"host": "evil.example"}, 403),
    "a form's content type": ({"content_type": "text/plain"}, 415),
    "no content type": ({"content_type": ""}, 415),
    "an unknown content coding": ({"content_encoding": "br"}, 415),
    "an unknown transfer coding": ({"transfer_encoding": "gzip, chunked"}, 501),
}
METHODS = {"another method": ("DELETE", 405), "a method of no server": ("BREW", 405)}
KEYS = {"no key": ("", 401), "an unknown key": (new_key(), 401), "another scope": (METRICS, 403)}


def check_refused(reply: Reply, status: int, backend: FakeBackend) -> None:
    assert reply.status == status
    assert reply.headers["x-request-id"]
    assert not reply.read
    assert not backend.seen


@pytest.mark.parametrize("path", sorted(GENERATING))
@pytest.mark.parametrize("name", REFUSED)
async def test_refused_by_a_header(
    backend: FakeBackend, text: TextService, gate: KeyGate, path: str, name: str
) -> None:
    headers, status = REFUSED[name]
    for app in (guarded(backend, text), guarded(backend, text, gate)):
        check_refused(await post(app, path, **OPEN | headers), status, backend)


@pytest.mark.parametrize("path", sorted(GENERATING))
@pytest.mark.parametrize("name", METHODS)
async def test_refused_by_its_method(
    backend: FakeBackend, text: TextService, path: str, name: str
) -> None:
    method, status = METHODS[name]
    check_refused(await post(guarded(backend, text), path, method), status, backend)


@pytest.mark.parametrize("path", sorted(GENERATING))
@pytest.mark.parametrize("name", KEYS)
async def test_refused_by_its_key(
    backend: FakeBackend, text: TextService, gate: KeyGate, path: str, name: str
) -> None:
    key, status = KEYS[name]
    reply = await post(guarded(backend, text, gate), path, x_api_key=key)
    check_refused(reply, status, backend)


async def test_refused_by_the_rate_of_its_key(
    backend: FakeBackend, text: TextService, gate: KeyGate
) -> None:
    app = guarded(backend, text, gate)
    assert (await post(app, "/generate", x_api_key=SPENT)).read
    for path in sorted(GENERATING):
        check_refused(await post(app, path, x_api_key=SPENT), 429, backend)


@pytest.mark.parametrize("path", sorted(GENERATING))
async def test_refused_for_want_of_room(
    backend: FakeBackend, text: TextService, gate: KeyGate, path: str
) -> None:
    backend.full = ApiError(ErrorCode.OVERLOADED, "the queue is full")
    for app in (guarded(backend, text), guarded(backend, text, gate)):
        check_refused(await post(app, path, **OPEN), 429, backend)


@pytest.mark.parametrize("path", sorted(GENERATING))
async def test_its_body_is_read_where_no_guard_refuses(
    backend: FakeBackend, text: TextService, gate: KeyGate, path: str
) -> None:
    for app in (guarded(backend, text), guarded(backend, text, gate)):
        reply = await post(app, path, **OPEN)
        assert reply.read
        assert reply.status == 400
