"""Baton's own HTTP server over a model that answers from scripts, and a record of its requests."""

import asyncio
import contextvars
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import toy_tokenizer
from clients.scenarios import Scripts, answer_to
from fake_backend import FakeBackend
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.api.backend import GenerateRequest, ModelInfo, TokenEvent
from baton.api.http import make_app
from baton.api.server.http_server import HttpServer
from baton.api.text_service import TextService
from baton.core.finish import Finished
from baton.core.supervised import ProcessSupervisor
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

CONTEXT = 200_000
TEMPLATES = Path(__file__).resolve().parent.parent / "chat_templates"


@dataclass
class Exchange:
    """A request and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    request: bytes = b""
    status: int = 0
    ignored: str = ""  # of the reply's header X-Baton-Ignored
    reply: bytes = b""
    prompt_ids: tuple[int, ...] = ()  # set by the backend
    prompt: str = ""
    answer: str = ""

    @property
    def body(self) -> Any:
        return json.loads(self.request) if self.request else None


CURRENT: contextvars.ContextVar[Exchange] = contextvars.ContextVar("exchange")


class Recorder:
    """Middleware that keeps every request and reply."""

    def __init__(self, app: ASGIApp, exchanges: list[Exchange]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode("latin1") for name, value in scope["headers"]}
        exchange = Exchange(scope["method"], scope["path"], headers)
        self._exchanges.append(exchange)
        CURRENT.set(exchange)

        async def receive_part() -> Message:
            message = await receive()
            exchange.request += message.get("body", b"")
            return message

        async def send_part(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                for name, value in message["headers"]:
                    if name.lower() == b"x-baton-ignored":
                        exchange.ignored = value.decode()
            exchange.reply += message.get("body", b"")
            await send(message)

        await self._app(scope, receive_part, send_part)


@dataclass
class ScriptedBackend(FakeBackend):
    """A backend that answers from the scripts."""

    scripts: Scripts = field(default_factory=dict)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        prompt = self.tokenizer.decode(request.prompt_ids, False)
        answer = answer_to(prompt, self.scripts)
        exchange = CURRENT.get()
        exchange.prompt_ids = tuple(request.prompt_ids)
        exchange.prompt, exchange.answer = prompt, answer
        one = FakeBackend(self.tokenizer, answer, per_event=7)
        async for event in one.generate(request):
            yield event

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("toy", CONTEXT, self.tokenizer.vocab_size, other_names=("*",))]


@dataclass(frozen=True)
class ScriptedServer:
    url: str
    backend: ScriptedBackend
    exchanges: list[Exchange]


def with_recorder(app: Starlette, exchanges: list[Exchange]) -> Starlette:
    return Starlette(
        routes=app.routes,
        middleware=[Middleware(Recorder, exchanges=exchanges), *app.user_middleware],
        exception_handlers=dict(app.exception_handlers),
    )


@asynccontextmanager
async def scripted_server(folder: Path, template: str) -> AsyncIterator[ScriptedServer]:
    """Yield a server of the named test template, whose files go into the folder."""
    toy_tokenizer.save_folder(folder)
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text())
    tokenizer = Tokenizer.from_folder(folder)
    text = TextService(tokenizer, ChatTemplate.from_folder(folder))
    backend = ScriptedBackend(tokenizer)
    exchanges: list[Exchange] = []
    server = HttpServer(
        with_recorder(make_app(backend, text), exchanges), "127.0.0.1", 0, ProcessSupervisor()
    )
    text.start()
    await server.start()
    try:
        yield ScriptedServer(f"http://127.0.0.1:{server.port}", backend, exchanges)
    finally:
        await server.stop(5)
        await asyncio.to_thread(text.close)
