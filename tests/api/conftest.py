"""The application over a fake backend: in process, and behind a real server on a free port."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import toy_tokenizer
import uvicorn
import uvloop
from fake_backend import Connect, FakeBackend, Serve

from baton.api.fields.request_fields import UnknownFields
from baton.api.http import MetricsPage, make_app
from baton.api.server.http_server import HttpServer
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.core.supervised import ProcessSupervisor
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

MAX_BODY = 20_000


def pytest_asyncio_loop_factories(
    item: pytest.Function,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Attack the HTTP server on uvloop too, as a router runs on: it reads, writes and closes in
    another order than asyncio's own loop."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    if "serving" in vars(item.module):  # of `attacked_http`
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tokenizer.save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture
def text(folder: Path, tokenizer: Tokenizer) -> Iterator[TextService]:
    service = TextService(tokenizer, ChatTemplate.from_folder(folder))
    yield service
    service.close()


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(tokenizer)


@pytest.fixture
def connect(backend: FakeBackend, text: TextService) -> Connect:
    """A client of the application, without a server between."""
    return _connect_to(backend, text)


@pytest.fixture
def connect_strict(backend: FakeBackend, text: TextService) -> Connect:
    """Return a `connect` to a server that refuses unknown fields."""
    return _connect_to(backend, text, unknown=UnknownFields.REFUSE)


@pytest.fixture
def connect_incremental(backend: FakeBackend, text: TextService) -> Connect:
    """Return a `connect` whose streams of `/generate` send only what is new."""
    return _connect_to(backend, text, incremental=True)


def _connect_to(
    backend: FakeBackend,
    text: TextService,
    *,
    incremental: bool = False,
    unknown: UnknownFields = UnknownFields.WARN,
) -> Connect:
    app = make_app(
        backend,
        text,
        lambda: MetricsPage(b"baton_up 1\n", "text/plain; version=0.0.4"),
        max_body_bytes=MAX_BODY,
        unknown_fields=unknown,
        more_routes=sglang_routes(
            backend,
            text,
            max_body_bytes=MAX_BODY,
            unknown_fields=unknown,
            incremental=incremental,
        ),
        synthetic=lambda: backend.synthetic,
    )

    @asynccontextmanager
    async def open_client() -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
            yield client

    return open_client


@pytest.fixture
def serve(backend: FakeBackend, text: TextService) -> Serve:
    """A real server; gives its base URL."""

    @asynccontextmanager
    async def run() -> AsyncIterator[str]:
        app = make_app(backend, text, more_routes=sglang_routes(backend, text))
        config = uvicorn.Config(app, lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        # Bound and listening before the server runs: a client can connect at once.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # asyncio leaves Nagle's algorithm on for a listener made elsewhere: 40 ms a reply.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await asyncio.wait_for(task, 60)

    return run


@pytest.fixture
def serve_pinging(backend: FakeBackend, text: TextService) -> Serve:
    """Baton's own server, whose streams send a ping after a hundredth of a second of silence."""

    @asynccontextmanager
    async def run() -> AsyncIterator[str]:
        routes = sglang_routes(backend, text, ping_s=0.01)
        app = make_app(backend, text, more_routes=routes, ping_s=0.01)
        owner = ProcessSupervisor()
        owner.use_running_loop()
        server = HttpServer(app, "127.0.0.1", 0, owner)
        await server.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            await server.stop(5)
            await owner.close()

    return run
