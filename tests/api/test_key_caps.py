"""The caps of API keys over HTTP: statuses, headers, aborts of one's own, and guesses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import httpx
import pytest
from fake_backend import CONTEXT, FakeBackend
from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_accounts import KeyAccounts
from baton.api.access.key_gate import KeyGate
from baton.api.access.key_guesses import KeyGuesses, address_of_peer
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.api.backend import MAX_PRIORITY
from baton.api.counted_backend import CountedBackend
from baton.api.grpc.inference import InferenceServicer
from baton.api.http import make_app
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.proto import inference_pb2, inference_pb2_grpc

TEXTS = {name: new_key() for name in ("ada", "ben", "root")}
DEADLINE_S = 60.0
SHORT = {"prompt": "hi", "max_tokens": 1}


class Server:
    """The application with keys, and what it counts."""

    def __init__(self, backend: FakeBackend, text: TextService, path: Path, **caps: int) -> None:
        infer, admin = frozenset({KeyScope.INFER}), frozenset({KeyScope.ADMIN})
        write_keys(
            path,
            [
                Key("ada", digest_of(TEXTS["ada"]), infer, **caps),
                Key("ben", digest_of(TEXTS["ben"]), infer),
                Key("root", digest_of(TEXTS["root"]), admin),
            ],
        )
        self.registry = CollectorRegistry()
        metrics = ClientMetrics("router", self.registry)
        limits = ClientLimits(key_guesses_per_minute=3)
        accounts = KeyAccounts(lambda: 0.0, metrics.key_refused)  # nothing fills up meanwhile
        keys = KeyGate(Keyring(path), accounts, KeyGuesses(limits, metrics, lambda: 0.0))
        counted = CountedBackend(backend, keys.accounts)
        self.inference = InferenceServicer(counted, text, keys)
        self.app = make_app(counted, text, more_routes=sglang_routes(counted, text), keys=keys)

    @asynccontextmanager
    async def client(
        self, name: str, address: str = "10.0.0.1"
    ) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        headers = {"x-api-key": TEXTS.get(name, name)}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://toy", headers=headers
        ) as client:
            yield client

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
        """A client over gRPC, at a server without interceptors."""
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self.inference, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield inference_pb2_grpc.InferenceStub(channel)
        await server.stop(None)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"baton_router_{name}", labels) or 0.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


async def test_a_reply_says_what_is_left(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    server = Server(backend, text, path, requests_per_minute=3, tokens_per_minute=10_000)
    async with server.client("ada") as client:
        replies = [await client.post("/v1/completions", json=SHORT) for _ in range(3)]
        refused = await client.post("/v1/completions", json=SHORT)
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    left = [int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies]
    assert left == [2, 1, 0]
    assert replies[0].headers["x-ratelimit-limit-tokens"] == "10000"
    assert int(replies[2].headers["x-ratelimit-remaining-tokens"]) < 10_000
    assert replies[0].headers["x-ratelimit-reset-requests"].endswith("s")
    assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert server.value("key_refusals_total", key="ada", cap="requests_per_minute") == 1
    async with server.client("ben") as client:
        reply = await client.post("/v1/completions", json=SHORT)
    assert "x-ratelimit-limit-requests" not in reply.headers


async def test_a_call_over_grpc_says_what_is_left_and_when_to_try_again(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    server = Server(backend, text, path, requests_per_minute=2)
    found = []
    async with server.stub() as stub:
        for _ in range(3):
            call = stub.Generate(
                inference_pb2.GenerateRequest(text="hi"),
                metadata=(("x-api-key", TEXTS["ada"]),),
                timeout=DEADLINE_S,
            )
            with suppress(grpc.aio.AioRpcError):  # the third is refused
                assert [reply async for reply in call]
            found.append((await call.code(), dict(await call.trailing_metadata())))
    codes, said = zip(*found, strict=True)
    ok, exhausted = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert codes == (ok, ok, exhausted)
    assert [each["x-ratelimit-remaining-requests"] for each in said] == ["1", "0", "0"]
    assert "retry-after" not in said[1]
    assert (said[2]["retry-after"], said[2]["grpc-retry-pushback-ms"]) == ("30", "30000")


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "n": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3}),
        ("/generate", {"text": "hi", "sampling_params": {"n": 3}}),
        ("/v1/completions", {"prompt": "hi", "priority": 1}),
        ("/generate", {"text": "hi", "priority": 1}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_key_may_not_ask_for_is_forbidden_on_every_api(
    backend: FakeBackend,
    text: TextService,
    path: Path,
    url: str,
    body: dict[str, object],
    stream: bool,
) -> None:
    server = Server(backend, text, path, max_n=2, max_priority=0)
    async with server.client("ada") as client:
        reply = await client.post(url, json=body | {"stream": stream})
    assert reply.status_code == 403, reply.text
    assert "may have at most" in reply.json()["error"]["message"]
    assert not backend.seen
    async with server.client("ben") as client:
        assert (await client.post(url, json=body)).status_code == 200


async def test_tokens_are_counted_as_they_come_and_given_back_on_every_end(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    backend.says = "abcdefgh"
    server = Server(backend, text, path, tokens_per_minute=100_000)
    body = {"prompt": [10, 11, 12], "max_tokens": 5, "ignore_eos": True}
    async with server.client("ada") as client:
        first = await client.post("/v1/completions", json=body)
        streamed = await client.post("/v1/completions", json=body | {"stream": True})
        long = [10] * (CONTEXT + 1)
        refused = await client.post("/v1/completions", json={"prompt": long, "max_tokens": 5})
        cut = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1_000_000})
        last = await client.get("/v1/models")
    used = first.json()["usage"]["total_tokens"]
    assert used == 8 and streamed.status_code == 200 and refused.status_code == 400
    used += used + cut.json()["usage"]["total_tokens"]
    assert int(last.headers["x-ratelimit-remaining-tokens"]) == 100_000 - used


@asynccontextmanager
async def held(
    server: Server, backend: FakeBackend, name: str, rid: str
) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """An answer that has begun and does not go on."""
    backend.hold_after = 0
    backend.holding.clear()
    async with server.client(name) as client:
        work = asyncio.create_task(client.post("/generate", json={"text": "hi", "rid": rid}))
        await asyncio.wait_for(backend.holding.wait(), DEADLINE_S)
        yield work
        await server_abort(server, "root", {"abort_all": True})
        await asyncio.wait_for(work, DEADLINE_S)


async def server_abort(server: Server, name: str, body: dict[str, object]) -> int:
    async with server.client(name) as client:
        reply = await client.post("/abort_request", json=body)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["aborted"])


async def test_a_key_aborts_its_own_requests_alone(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    server = Server(backend, text, path)
    async with (
        held(server, backend, "ada", "same") as adas,
        held(server, backend, "ben", "same") as bens,
    ):
        assert await server_abort(server, "ada", {"rid": "unknown"}) == 0
        other = next(each for each in backend.seen if each.owner == "ben")
        assert await server_abort(server, "ada", {"rid": other.request_id}) == 0
        assert await server_abort(server, "ada", {"rid": "same"}) == 1
        assert (await asyncio.wait_for(adas, DEADLINE_S)).status_code == 200
        assert not bens.done()
        assert await server_abort(server, "ben", {"abort_all": True}) >= 1


async def test_answers_at_once_are_bounded(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    server = Server(backend, text, path, concurrent_requests=1)
    async with held(server, backend, "ada", "first"), server.client("ada") as client:
        refused = await client.post("/v1/completions", json=SHORT)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert (await client.get("/v1/models")).status_code == 200
    backend.hold_after = None
    async with server.client("ada") as client:
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200


async def test_guesses_are_limited_by_address_and_right_keys_never(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    server = Server(backend, text, path)
    async with server.client("nonsense") as client:
        codes = [(await client.get("/v1/models")).status_code for _ in range(5)]
        refused = await client.get("/v1/models")
    assert codes == [401, 401, 401, 429, 429]
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    async with server.client("nonsense", "10.0.0.2") as client:
        assert (await client.get("/v1/models")).status_code == 401
    async with server.client("ada") as client:
        assert (await client.get("/v1/models")).status_code == 200
    assert server.value("refusals_total", reason=Refusal.KEY.value) == 4
    assert server.value("refusals_total", reason=Refusal.KEY_GUESSES.value) == 3


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:80", "10.0.0.1"), ("ipv6:%5B::1%5D:80", "::1"), ("ipv6:[::1]:80", "::1")],
)
def test_grpcs_name_of_a_peer_has_its_address(peer: str, address: str) -> None:
    assert address_of_peer(peer) == address


async def test_a_health_probe_has_the_bounds_and_the_priority_of_its_key(
    backend: FakeBackend, text: TextService, path: Path
) -> None:
    backend.hold_after = 0
    server = Server(backend, text, path, concurrent_requests=1, max_priority=3)
    async with server.client("ada") as ada, server.client("ben") as ben:
        first = asyncio.create_task(ada.get("/health_generate"))
        await asyncio.wait_for(backend.holding.wait(), DEADLINE_S)
        reply = await asyncio.wait_for(ada.get("/health_generate"), DEADLINE_S)
        assert reply.status_code == 429
        assert "1 answers at once" in reply.json()["error"]["message"]
        first.cancel()
        await asyncio.wait([first], timeout=DEADLINE_S)
        backend.hold_after = None
        for client in (ada, ben):
            assert (await client.get("/health_generate")).status_code == 200
    assert [probe.priority for probe in backend.seen] == [3, 3, MAX_PRIORITY]
