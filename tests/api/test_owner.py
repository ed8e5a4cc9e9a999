"""The name of the API key on each request that reaches the backend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from fake_backend import FakeBackend

from baton.api.access.access import KeyInterceptor
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.api.grpc.inference import InferenceServicer
from baton.api.http import make_app
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.proto import inference_pb2, inference_pb2_grpc

TEXTS = {name: new_key() for name in ("ada", "ben")}
CALLS = [
    ("POST", "/v1/completions", {"prompt": ["hi", "ho"], "n": 2, "max_tokens": 2}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}}),
    ("GET", "/health_generate", None),
]


@pytest.fixture
def keys(tmp_path: Path) -> KeyGate:
    path = tmp_path / "keys.json"
    infer = frozenset({KeyScope.INFER})
    write_keys(path, [Key(name, digest_of(text), infer) for name, text in TEXTS.items()])
    return KeyGate(Keyring(path))


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
@pytest.mark.parametrize("name", TEXTS)
async def test_an_http_request_is_its_keys(
    backend: FakeBackend,
    text: TextService,
    keys: KeyGate,
    name: str,
    method: str,
    path: str,
    body: dict[str, object] | None,
) -> None:
    app = make_app(backend, text, more_routes=sglang_routes(backend, text), keys=keys)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://toy"
    ) as client:
        headers = {"x-api-key": TEXTS[name]}
        reply = await client.request(method, path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert {request.owner for request in backend.seen} == {name}


@pytest.mark.parametrize("name", TEXTS)
async def test_a_call_over_grpc_is_its_keys(
    backend: FakeBackend, text: TextService, keys: KeyGate, name: str
) -> None:
    async with stub(InferenceServicer(backend, text, keys), keys) as generate:
        message = inference_pb2.GenerateRequest(text="hi")
        metadata = (("authorization", f"Bearer {TEXTS[name]}"),)
        assert await generate(message, metadata=metadata, timeout=60).read() is not grpc.aio.EOF
    assert [request.owner for request in backend.seen] == [name]


@asynccontextmanager
async def stub(
    servicer: InferenceServicer, keys: KeyGate
) -> AsyncIterator[grpc.aio.UnaryStreamMultiCallable]:
    server = grpc.aio.server(interceptors=[KeyInterceptor(keys)])
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield inference_pb2_grpc.InferenceStub(channel).Generate
    finally:
        await server.stop(None)


async def test_without_keys_nobody_owns_a_request(backend: FakeBackend, text: TextService) -> None:
    app = make_app(backend, text)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://toy"
    ) as client:
        await client.post("/v1/completions", json={"prompt": "hi"})
    assert [request.owner for request in backend.seen] == [None]
