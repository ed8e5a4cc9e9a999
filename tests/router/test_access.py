"""API keys at a real router: each route and each RPC, with every kind of key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from router_neighbours import Cluster
from starlette.routing import Route

from baton.api.access.access import OWN_REQUESTS, ROUTES, RPCS, guard_routes
from baton.api.access.client_limits import ClientLimits
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.core.errors import ConfigError
from baton.proto import inference_pb2
from baton.router.config import RouterConfig
from baton.router.server import INFERENCE

TEXTS = {scope.value: new_key() for scope in KeyScope} | {"none": new_key(), "operator": new_key()}
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
}
POSTS = {*BODIES, "/flush_cache", "/start_profile", "/stop_profile", "/control"}


def key(name: str, *scopes: KeyScope, rate: int | None = None) -> Key:
    return Key(name, digest_of(TEXTS[name]), frozenset(scopes), rate)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a key of each scope, and one with none."""
    file = tmp_path / "keys.json"
    write_keys(file, [*(key(scope.value, scope) for scope in KeyScope), key("none")])
    return file


@asynccontextmanager
async def router(folder: Path, keys: Path) -> AsyncIterator[tuple[Cluster, httpx.AsyncClient]]:
    """A router that asks for keys, with a rank that answers."""
    options = {
        "api_keys": keys,
        "operator_sha256": digest_of(TEXTS["operator"]),
        "limits": ClientLimits(key_guesses_per_minute=10_000),
    }
    async with Cluster(folder, **options) as cluster:
        cluster.headers = bearer("operator")
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [20], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            yield cluster, http


async def call(
    http: httpx.AsyncClient, route: str, headers: dict[str, str], model: str = ""
) -> httpx.Response:
    """Send a good request, but for its key."""
    method = "POST" if route in POSTS else "GET"
    url = route.replace("{model_id:path}", model).replace("{worker_id}", "d0")
    return await http.request(method, url, json=BODIES.get(route), headers=headers)


async def test_every_route_opens_to_its_scope_alone(tmp_path: Path, path: Path) -> None:
    async with router(tmp_path, path) as (_, http):
        model = (await call(http, "/v1/models", bearer("infer"))).json()["data"][0]["id"]
        for route, scope in ROUTES.items():
            for name in ("infer", "metrics", "admin", "none", "operator"):
                reply = await call(http, route, bearer(name), model)
                may = scope is None or name in (scope.value, "operator", OWN_REQUESTS.get(route))
                check(reply, 200 if may else 403, f"{route} with a key for {name}")
            for wrong in ({}, {"authorization": "Bearer nonsense"}, {"x-api-key": ""}):
                reply = await call(http, route, wrong, model)
                check(reply, 200 if scope is None else 401, f"{route} with {wrong}")
            if scope is not None:
                reply = await call(http, route, {"x-api-key": TEXTS[scope.value]}, model)
                check(reply, 200, f"{route} by x-api-key")


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TEXTS[name]}"}


def check(reply: httpx.Response, status: int, case: str) -> None:
    closed = {409} if not case.startswith("/explain") else {404}  # not now; nobody's request
    reached = 200 if reply.status_code in closed else reply.status_code
    assert reached == status, f"{case}: {reply.status_code} {reply.text}"
    if status == 401:
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["type"] == "authentication_error"
    if status == 403:
        denied = ("permission_denied", "permission_error")  # in OpenAI's form, in Anthropic's
        assert reply.json()["error"].get("code", reply.json()["error"]["type"]) in denied


def test_health_and_the_servers_name_alone_need_no_key() -> None:
    free = [route for route, scope in ROUTES.items() if scope is None]
    assert free == ["/", "/health", "/ready"]
    assert {method for method, scope in RPCS.items() if scope is None} == {
        f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch", "List")
    }


def test_a_route_that_the_table_lacks_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="/new"):
        guard_routes([Route("/new", lambda _: None)], KeyGate(Keyring(path)))


async def test_health_tells_strangers_a_status_alone(tmp_path: Path, path: Path) -> None:
    options = {"api_keys": path, "operator_sha256": digest_of(TEXTS["operator"])}
    async with Cluster(tmp_path, **options) as cluster:
        reply = await get(cluster, "/ready")
        assert reply.status_code == 503
        assert reply.json()["error"]["message"] == "not ready"
        assert (await get(cluster, "/health")).json() == {"status": "ok", "detail": ""}


async def get(cluster: Cluster, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
        return await http.get(path)


async def test_no_key_is_told_by_the_server(tmp_path: Path, path: Path) -> None:
    config = RouterConfig(tmp_path, tmp_path, api_keys=path)
    async with router(tmp_path, path) as (_, http):
        info = await call(http, "/server_info", bearer("metrics"))
    for text in TEXTS.values():
        assert text not in info.text + repr(config) + path.read_text()
    assert digest_of(TEXTS["infer"]) not in repr(Keyring(path)._keys.get())


async def test_every_rpc_of_the_router_opens_to_its_scope_alone(tmp_path: Path, path: Path) -> None:
    async with router(tmp_path, path) as (cluster, _):
        services = await reflected(cluster)
        for_clients = {method.split("/")[1] for method in RPCS} - {"baton.v1.Registry"}
        assert set(services) == for_clients
        for method, scope in RPCS.items():
            for name in ("infer", "metrics", "admin", "none", "operator", "nobody", "wrong"):
                code = await code_of(cluster, method, name)
                case = f"{method} with {name}: {code}"
                if scope is None or name in (scope.value, "operator", OWN_REQUESTS.get(method)):
                    denied = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                    assert code not in denied, case
                elif name in ("nobody", "wrong"):
                    assert code is grpc.StatusCode.UNAUTHENTICATED, case
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED, case
        unknown = await code_of(cluster, f"/{INFERENCE}/Other", "operator")
        assert unknown is grpc.StatusCode.PERMISSION_DENIED


async def reflected(cluster: Cluster) -> list[str]:
    """The services that the router says it has."""
    call = cluster.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(metadata=metadata("infer"), timeout=DEADLINE_S)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = (await call.read()).list_services_response.service
    call.cancel()
    return [service.name for service in listed]


def metadata(name: str) -> tuple[tuple[str, str], ...]:
    if name == "nobody":
        return ()
    return (("authorization", f"Bearer {TEXTS.get(name, 'nonsense')}"),)


async def code_of(cluster: Cluster, method: str, name: str) -> grpc.StatusCode:
    """The status of a call that sends nothing of sense."""
    given = metadata(name)
    channel = cluster.channel
    if method.endswith(("/Register", "/ServerReflectionInfo")):
        call = channel.stream_stream(method)(metadata=given, timeout=DEADLINE_S)
        await call.done_writing()
    elif method.endswith(("/Check", "/List")):
        call = channel.unary_unary(method)(b"", metadata=given, timeout=DEADLINE_S)
    elif method.endswith("/Watch"):
        call = channel.unary_stream(method)(b"", metadata=given, timeout=0.2)
    else:
        call = channel.unary_stream(method)(b"", metadata=given, timeout=DEADLINE_S)
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:  # a status comes after all replies were read
                pass
    return await call.code()


def test_every_rpc_that_a_client_could_call_is_in_the_table() -> None:
    described = {
        f"/{service.full_name}/{method.name}"
        for service in (
            inference_pb2.DESCRIPTOR.services_by_name["Inference"],
            health_pb2.DESCRIPTOR.services_by_name["Health"],
            reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
        )
        for method in service.methods
    }
    assert described == set(RPCS)


async def test_a_client_over_its_rate_hears_when_to_come_back(tmp_path: Path, path: Path) -> None:
    write_keys(path, [key("infer", KeyScope.INFER, rate=2)])
    async with router(tmp_path, path) as (cluster, http):
        replies = [await call(http, "/v1/models", bearer("infer")) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert 1 <= int(replies[2].headers["retry-after"]) <= 30
        assert replies[2].json()["error"]["code"] == "overloaded"
        limited = await code_of(cluster, f"/{INFERENCE}/Generate", "infer")
        assert limited is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_without_keys_everybody_may_call(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        for url in ("/metrics", "/v1/models", "/server_info", "/prometheus/targets"):
            assert (await get(cluster, url)).status_code == 200


async def test_a_file_that_is_wrong_stops_the_start(tmp_path: Path) -> None:
    broken = tmp_path / "keys.json"
    broken.write_text("{}")
    with pytest.raises(ConfigError, match="baton keys add"):
        async with router(tmp_path, broken):
            pass
