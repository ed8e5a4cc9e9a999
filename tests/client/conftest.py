"""The server that clients reach, over a fake backend."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import toy_tokenizer
from fake_backend import FakeBackend

from baton.api.grpc.inference import InferenceServicer
from baton.api.server.grpc_server import GrpcServer
from baton.api.text_service import TextService
from baton.core.supervised import ProcessSupervisor
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tokenizer.save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def text(folder: Path) -> Iterator[TextService]:
    service = TextService(Tokenizer.from_folder(folder), ChatTemplate.from_folder(folder))
    yield service
    service.close()


@pytest.fixture
def backend(text: TextService) -> FakeBackend:
    return FakeBackend(text.tokenizer)


@pytest_asyncio.fixture
async def server(backend: FakeBackend, text: TextService) -> AsyncIterator[GrpcServer]:
    servicer = InferenceServicer(backend, text)
    server = GrpcServer(servicer, "127.0.0.1", 0, ProcessSupervisor(), max_body_bytes=1 << 20)
    await server.start()
    yield server
    await server.stop(0.1)


@pytest.fixture
def address(server: GrpcServer) -> str:
    """The address at which the server listens."""
    return f"127.0.0.1:{server.port}"
