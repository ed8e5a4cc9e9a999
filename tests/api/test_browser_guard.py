"""Tests of what a web page of another site can make a visitor's browser do, over the real HTTP
server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend
from starlette.applications import Starlette
from starlette.routing import Route

from baton.api.access.browser_guard import BrowserPolicy
from baton.api.http import MetricsPage, make_app
from baton.api.server.http_server import HttpServer
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.core.address import is_loopback
from baton.core.supervised import ProcessSupervisor
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.routes import router_routes

LOOPBACK = BrowserPolicy.of_server("127.0.0.1", (), (), keys=False)
FRIEND = "https://friend.example"
FOREIGN = ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example")
BODIES = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 2}},
    "/abort_request": {"rid": "nobody"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [40, 41]},
    "/flush_cache": None,
}
Open = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def make(backend: FakeBackend, text: TextService, policy: BrowserPolicy) -> Starlette:
    async def page_of(worker_id: str) -> bytes:
        return worker_id.encode()

    table = WorkerTable(2.0, time.monotonic)
    more = [*sglang_routes(backend, text), *router_routes(table, "router-0", page_of)]
    page = MetricsPage(b"baton_up 1\n", "text/plain")
    return make_app(backend, text, lambda: page, more_routes=more, browsers=policy)


@pytest.fixture
def routes(backend: FakeBackend, text: TextService) -> list[tuple[str, str]]:
    """Every path and method of the router's application."""
    return [
        (route.path.replace("{model_id:path}", "toy"), method)
        for route in make(backend, text, LOOPBACK).routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


@pytest.fixture
def opened(backend: FakeBackend, text: TextService) -> Open:
    """A client of the application behind the server that the router runs."""

    @asynccontextmanager
    async def run(policy: BrowserPolicy = LOOPBACK) -> AsyncIterator[httpx.AsyncClient]:
        server = HttpServer(make(backend, text, policy), "127.0.0.1", 0, ProcessSupervisor())
        await server.start()
        url = f"http://127.0.0.1:{server.port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield client
        finally:
            await server.stop(0.1)

    return run


async def send(
    client: httpx.AsyncClient, path: str, method: str, headers: dict[str, str]
) -> httpx.Response:
    """Send a good request, but for its headers."""
    body = BODIES[path] if method in ("POST", "PUT") else None
    content = b"" if body is None else json.dumps(body).encode()
    typed = {"content-type": "application/json", **headers} if content else headers
    return await client.request(method, path, content=content, headers=typed)


def check(reply: httpx.Response, status: int, code: str, words: str) -> None:
    where = f"{reply.request.method} {reply.request.url} {reply.text}"
    assert reply.status_code == status, where
    error: dict[str, Any] = reply.json()["error"]
    if reply.request.url.path.startswith("/v1/messages"):  # Anthropic's form has a type alone
        types = {
            "permission_denied": "permission_error",
            "invalid_request": "invalid_request_error",
        }
        assert error["type"] == types[code] and words in error["message"], where
        return
    assert error["code"] == code and words in error["message"], where


def untouched(backend: FakeBackend) -> bool:
    return not backend.seen and not backend.flushed


async def test_every_route_answers_clients_that_are_no_browser(
    opened: Open, routes: list[tuple[str, str]]
) -> None:
    async with opened() as client:
        for path, method in routes:
            for host in ("localhost", "LOCALHOST:8000", "127.3.2.1:8000", "[::1]:8000", "::1"):
                reply = await send(client, path, method, {} if host == "::1" else {"host": host})
                assert reply.status_code == 200, f"{method} {path} {host}: {reply.text}"
    assert len(routes) > 12 and {path for path, m in routes if m == "POST"} == set(BODIES)


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_of_another_origin_reaches_no_route(
    opened: Open, routes: list[tuple[str, str]], backend: FakeBackend, origin: str
) -> None:
    async with opened() as client:
        for path, method in routes:
            reply = await send(client, path, method, {"origin": origin})
            check(reply, 403, "permission_denied", "--cors-origin")
            assert "access-control-allow-origin" not in reply.headers
        assert untouched(backend)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_an_image_or_link_of_another_site_reaches_no_route(
    opened: Open, routes: list[tuple[str, str]], backend: FakeBackend, site: str
) -> None:
    """A GET without Origin, as `<img src=http://localhost:8000/flush_cache>` sends it."""
    async with opened() as client:
        for path, method in routes:
            reply = await send(client, path, method, {"sec-fetch-site": site})
            check(reply, 403, "permission_denied", "another site")
        assert untouched(backend)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "8.8.8.8", ""]
)
async def test_a_rebound_name_reaches_no_route(
    opened: Open, routes: list[tuple[str, str]], backend: FakeBackend, host: str
) -> None:
    """DNS rebinding: the page's own name points to 127.0.0.1, so its Origin is the Host's."""
    async with opened() as client:
        for path, method in routes:
            reply = await send(client, path, method, {"host": host, "origin": f"http://{host}"})
            check(reply, 403, "permission_denied", "--allowed-host")
        assert untouched(backend)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_body_that_a_form_could_send_is_refused_by_every_route(
    opened: Open, routes: list[tuple[str, str]], backend: FakeBackend, kind: str
) -> None:
    async with opened() as client:
        for path, method in routes:
            if method == "GET":
                continue
            headers = {"content-type": kind} if kind else {}
            raw = json.dumps(BODIES[path] or {}).encode()
            reply = await client.request(method, path, content=raw, headers=headers)
            check(reply, 415, "invalid_request", "application/json")

            async def chunks(raw: bytes = raw) -> AsyncIterator[bytes]:
                yield raw

            reply = await client.request(method, path, content=chunks(), headers=headers)
            check(reply, 415, "invalid_request", "application/json")
        assert untouched(backend)


async def test_json_may_name_its_charset(opened: Open) -> None:
    async with opened() as client:
        kind = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await send(client, "/v1/completions", "POST", kind)).status_code == 200


async def test_the_servers_own_pages_may_call(opened: Open, routes: list[tuple[str, str]]) -> None:
    async with opened() as client:
        for path, method in routes:
            own = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
            assert (await send(client, path, method, own)).status_code == 200
        usual = {"host": "localhost", "origin": "http://localhost:80"}
        assert (await send(client, "/health", "GET", usual)).status_code == 200


async def test_without_cors_a_preflight_grants_nothing(opened: Open) -> None:
    async with opened() as client:
        reply = await client.options("/v1/completions", headers=preflight(FRIEND))
        assert reply.status_code == 403
        assert not [name for name in reply.headers if name.startswith("access-control")]


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }


async def test_an_origin_that_is_named_may_call(
    opened: Open, routes: list[tuple[str, str]]
) -> None:
    policy = BrowserPolicy.of_server("127.0.0.1", (), (FRIEND,), keys=False)
    site = {"origin": FRIEND, "sec-fetch-site": "cross-site"}
    async with opened(policy) as client:
        for path, method in routes:
            reply = await send(client, path, method, site)
            assert reply.status_code == 200, reply.text
            assert reply.headers["access-control-allow-origin"] == FRIEND
            assert "Origin" in reply.headers["vary"]
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"retry-after", "x-request-id", "x-ratelimit-remaining-tokens"} <= set(exposed)
        reply = await client.options("/v1/completions", headers=preflight(FRIEND))
        assert reply.status_code == 200
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert "authorization" in reply.headers["access-control-allow-headers"]
        bad = await client.post("/v1/completions", content=b"{}", headers=site)
        assert (bad.status_code, bad.headers["access-control-allow-origin"]) == (415, FRIEND)
        check(await client.get("/health", headers={"origin": FOREIGN[0]}), 403, "permission_denied",
              "evil.example")  # fmt: skip


async def test_a_host_that_is_named_is_served(opened: Open) -> None:
    policy = BrowserPolicy.of_server("127.0.0.1", ("Models.Example",), (), keys=False)
    async with opened(policy) as client:
        assert (
            await client.get("/health", headers={"host": "models.example:80"})
        ).status_code == 200
        assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 403


@pytest.mark.parametrize(
    ("host", "allowed", "keys", "checked"),
    [
        ("127.0.0.1", (), False, True),
        ("localhost", (), False, True),
        ("::1", (), False, True),
        ("127.0.0.1", (), True, False),
        ("0.0.0.0", (), False, False),
        ("0.0.0.0", ("models.example",), True, True),
    ],
)
def test_host_is_checked_on_loopback_without_keys_and_where_names_are_given(
    host: str, allowed: tuple[str, ...], keys: bool, checked: bool
) -> None:
    assert (BrowserPolicy.of_server(host, allowed, (), keys=keys).hosts is not None) == checked


def test_loopback_is_all_of_127() -> None:
    for host in ("127.0.0.1", "127.255.0.9", "::1", "[::1]", "localhost", "LocalHost."):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example", ""):
        assert not is_loopback(host)


async def test_concurrent_requests_are_judged_one_by_one(opened: Open) -> None:
    async with opened() as client:
        replies = await asyncio.gather(
            *(client.get("/health", headers={"origin": o} if o else {}) for o in (*FOREIGN, "") * 4)
        )
    assert [r.status_code for r in replies] == [403, 403, 403, 403, 200] * 4


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "a@evil.example"])
@pytest.mark.parametrize("path", ["/health/", "/server_info/", "/server_info/?a=b"])
async def test_a_redirect_stays_at_the_server_whatever_host_is_named(
    opened: Open, host: str, path: str
) -> None:
    async with opened(BrowserPolicy()) as client:
        reply = await client.get(path, headers={"host": host})
        assert reply.status_code == 307
        assert reply.headers["location"] == path.replace("/?", "?").removesuffix("/")
        assert (await client.get(reply.headers["location"])).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/server_info/", "/\\evil/"])
async def test_no_path_makes_a_redirect_that_names_another_server(opened: Open, path: str) -> None:
    async with opened(BrowserPolicy()) as client:
        reply = await client.get(client.base_url.copy_with(raw_path=path.encode()))
        assert "evil" not in reply.headers.get("location", "")
