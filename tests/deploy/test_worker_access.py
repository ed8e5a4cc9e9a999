"""API keys and TLS of a worker that answers clients by itself."""

import json
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from certificates import router
from click.testing import CliRunner
from deploy.tiny_worker import DEADLINE_S, GRID, findings, make_worker, prompt
from grpc_health.v1 import health_pb2, health_pb2_grpc
from https_certificates import TestAuthority

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.api.server.grpc_server import INFERENCE
from baton.cli.main import baton
from baton.core.role import Role
from baton.deploy.errors import StartError
from baton.proto import (
    common_pb2,
    inference_pb2,
    inference_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from baton.rpc import file_watcher
from baton.rpc.channel_options import OPTIONS
from baton.standalone.config import StandaloneConfig
from baton.standalone.worker import StandaloneWorker


@dataclass(frozen=True)
class Trusting:
    """Clients of one worker that trust one authority."""

    worker: StandaloneWorker
    authority: TestAuthority

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        """Open connections of their own, so that each client shakes hands."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        url = f"https://{self.worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, verify=context, timeout=DEADLINE_S) as client:
            yield client

    @asynccontextmanager
    async def grpc(self) -> AsyncIterator[grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials(self.authority.pem)
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = self.worker.addresses.grpc
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            yield channel

    async def refused(self) -> bool:
        """Return True if neither protocol's client accepts the certificate."""
        try:
            async with self.http() as http:
                await http.get("/health")
        except httpx.ConnectError:
            pass
        else:
            return False
        async with self.grpc() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        return failed.value.code() is grpc.StatusCode.UNAVAILABLE


def asked(ids: list[int], tokens: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=ids),
        sampling=common_pb2.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
        stream=True,
    )


async def test_a_changed_certificate_is_for_new_connections_and_ends_no_stream(
    tiny: Path, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watcher, "RECHECK_S", 0.0)
    old, new = TestAuthority.make("old"), TestAuthority.make("new")
    files = old.issue(tmp_path / "tls")
    clients = StandaloneConfig(client_tls=files)
    ids = prompt(rng, 5)
    tokens = 40 * GRID
    async with make_worker(tiny, clients=clients, max_running=2) as worker:
        before, after = Trusting(worker, old), Trusting(worker, new)
        async with before.http() as http, before.grpc() as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            call = stub.Generate(asked(ids, tokens), timeout=DEADLINE_S, wait_for_ready=True)
            body = {
                "input_ids": ids,
                "stream": True,
                "sampling_params": {
                    "max_new_tokens": tokens, "temperature": 0, "ignore_eos": True
                },
            }  # fmt: skip
            async with http.stream("POST", "/generate", json=body) as reply:
                lines = reply.aiter_lines()
                await anext(lines)
                replies = aiter(call)
                over_grpc = list((await anext(replies)).token_ids)
                new.issue(tmp_path / "tls")
                assert await before.refused()
                async with after.http() as later:
                    assert (await later.get("/health")).status_code == 200
                    page = (await later.get("/metrics")).text
                async with after.grpc() as later_channel:
                    check = health_pb2.HealthCheckRequest(service=INFERENCE)
                    answer = await health_pb2_grpc.HealthStub(later_channel).Check(
                        check, timeout=DEADLINE_S, wait_for_ready=True
                    )
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
                whole = [line async for line in lines if line.startswith("data: ")]
            async for each in replies:
                over_grpc += each.token_ids
        assert not await findings(worker)
    assert whole[-1] == "data: [DONE]"
    assert json.loads(whole[-2].removeprefix("data: "))["output_ids"] == over_grpc
    assert len(over_grpc) == tokens
    (line,) = [
        line
        for line in page.splitlines()
        if line.startswith("baton_worker_certificate_expiry_seconds{")
    ]
    assert 'certificate="clients"' in line
    assert 23 * 3600 < float(line.split()[-1]) <= 24 * 3600


async def test_a_client_without_tls_gets_nothing(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    files = TestAuthority.make().issue(tmp_path / "tls")
    async with make_worker(tiny, clients=StandaloneConfig(client_tls=files)) as worker:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://{worker.addresses.http}/health")
        async with grpc.aio.insecure_channel(worker.addresses.grpc) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.Generate(asked(prompt(rng, 3), 1), timeout=DEADLINE_S).read()
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_worker_asks_for_the_key_of_each_endpoint(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    texts = {scope: new_key() for scope in KeyScope}
    path = tmp_path / "keys.json"
    keys = [Key(scope, digest_of(text), frozenset({scope})) for scope, text in texts.items()]
    write_keys(path, keys)
    ids = prompt(rng, 4)
    async with make_worker(tiny, clients=StandaloneConfig(api_keys=path)) as worker:
        url = f"http://{worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:

            async def status(method: str, route: str, key: str | None) -> int:
                headers = {} if key is None else {"x-api-key": key}
                body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
                given = body if route == "/generate" else None
                return (await http.request(method, route, json=given, headers=headers)).status_code

            for method, route, scope in (
                ("POST", "/generate", KeyScope.INFER),
                ("GET", "/metrics", KeyScope.METRICS),
                ("GET", "/server_info", KeyScope.METRICS),
                ("POST", "/flush_cache", KeyScope.ADMIN),
            ):
                other = texts[KeyScope.INFER if scope is not KeyScope.INFER else KeyScope.ADMIN]
                answers = [await status(method, route, key) for key in (None, other, texts[scope])]
                assert answers == [401, 403, 200], route
            assert await status("GET", "/health", None) == 200
        async with grpc.aio.insecure_channel(worker.addresses.grpc) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for key, code in (
                (None, grpc.StatusCode.UNAUTHENTICATED),
                (texts[KeyScope.ADMIN], grpc.StatusCode.PERMISSION_DENIED),
                (texts[KeyScope.INFER], grpc.StatusCode.OK),
            ):
                metadata = () if key is None else (("x-api-key", key),)
                call = stub.Generate(asked(ids, 1), timeout=DEADLINE_S, metadata=metadata)
                with suppress(grpc.aio.AioRpcError):
                    assert [reply async for reply in call]
                assert await call.code() is code


async def test_what_a_worker_serves_its_peers_is_not_on_its_clients_port(tiny: Path) -> None:
    async with make_worker(tiny) as worker:
        async with grpc.aio.insecure_channel(worker.addresses.grpc) as channel:
            for method in ("Audit", "Status", "FlushCache", "Metrics"):
                call = channel.unary_unary(f"/baton.v1.Worker/{method}")(b"", timeout=DEADLINE_S)
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


def run(*words: str) -> None:
    CliRunner().invoke(baton, ("worker", "--model", "/no/such/folder", *words),
                       catch_exceptions=False)  # fmt: skip


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "models.example"])
def test_an_open_address_needs_keys_or_the_operators_word(host: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"--api-keys FILE .* or --insecure"):
        run("--host", host)
    path = tmp_path / "keys.json"
    write_keys(path, [])
    for words in (("--insecure",), ("--api-keys", str(path))):
        with pytest.raises(StartError, match="no such folder"):
            run("--host", host, *words)


def test_half_a_pair_and_a_bad_one_are_refused_before_anything_starts(tmp_path: Path) -> None:
    files = TestAuthority.make().issue(tmp_path / "tls")
    with pytest.raises(StartError, match="belong together"):
        run("--ssl-certfile", str(files.certificate))
    files.key.chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        run("--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key))


async def test_a_workers_caps_are_counted_where_a_routers_clients_do_not_read(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    text = new_key()
    path = tmp_path / "keys.json"
    scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
    write_keys(path, [Key("secretive", digest_of(text), scopes, max_n=1, tokens_per_minute=999)])
    clients = StandaloneConfig(api_keys=path)
    async with make_worker(tiny, Role.PREFILL, clients=clients) as worker:
        url, headers = f"http://{worker.addresses.http}", {"x-api-key": text}
        async with httpx.AsyncClient(timeout=DEADLINE_S, headers=headers) as client:
            body = {"prompt": prompt(rng, 5), "max_tokens": 2, "ignore_eos": True}
            refused = await client.post(f"{url}/v1/completions", json=body | {"n": 2})
            assert refused.status_code == 403
            answered = await client.post(f"{url}/v1/completions", json=body)
            assert answered.headers["x-ratelimit-limit-tokens"] == "999"
            own = (await client.get(f"{url}/metrics")).text
        identity = worker._context.hello.worker
        async with router().dial_worker(identity, OPTIONS) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            reply = await stub.Metrics(worker_pb2.MetricsRequest(), timeout=DEADLINE_S)
        passed_on = reply.text.decode()
    assert 'baton_worker_key_refusals_total{cap="max_n",key="secretive"' in own
    assert "baton_worker_refusals_total" in passed_on and "secretive" not in passed_on
