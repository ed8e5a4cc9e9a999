"""The router's process: HTTP, health, reflection, metrics, start and stop."""

import asyncio
import json
import socket
from pathlib import Path

import grpc
import httpx
import pytest
from certificates import folder_of
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.polling import until_answered
from router_neighbours import Cluster, model_folder, replies_of

from baton.core.errors import ConfigError
from baton.core.supervised import ProcessSupervisor
from baton.proto import inference_pb2_grpc
from baton.proto.inference_pb2 import GenerateRequest
from baton.router.actor import RouterActor
from baton.router.config import RouterConfig
from baton.router.server import INFERENCE, RouterServer
from baton.text.errors import TokenizerFileError

CERTIFICATE = folder_of("router", "router-0")


def client(cluster: Cluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S)


async def test_openai_streaming_goes_through_to_the_rank_and_back(tmp_path: Path) -> None:
    async with Cluster(tmp_path, served_model_name="toy") as cluster, client(cluster) as http:
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, start.prompt_ids, last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        models = (await http.get("/v1/models")).json()["data"]
        assert [(m["id"], m["max_model_len"]) for m in models] == [("toy", 4096)]
        body = {"model": "toy", "prompt": "hello", "max_tokens": 4, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert "".join(c["choices"][0]["text"] for c in chunks) == "hello"


async def test_an_http_client_that_leaves_mid_answer_reaches_the_rank(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, start.prompt_ids[:1])])
        await cluster.add(FakeWorker("p0"), rank)
        body = {"prompt": "hello", "max_tokens": 4, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
        start = await within(rank.starts.get())
        assert (await within(rank.cancels.get())).request_id == start.request_id


async def test_overload_is_429_with_retry_after(tmp_path: Path) -> None:
    async with Cluster(tmp_path, max_queued=0) as cluster, client(cluster) as http:
        response = await http.post("/v1/completions", json={"prompt": "hello"})
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"


async def test_without_workers_http_says_503_and_why(tmp_path: Path) -> None:
    async with Cluster(tmp_path, worker_wait_s=0) as cluster, client(cluster) as http:
        for response in (
            await http.post("/v1/completions", json={"prompt": "hello"}),
            await http.get("/ready"),
        ):
            assert response.status_code == 503
            message = response.json()["error"]["message"]
            assert "no prefill and no decode worker is ready" in message
        assert (await http.get("/health")).status_code == 200


async def test_health_follows_the_workers_over_grpc(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        stub = health_pb2_grpc.HealthStub(cluster.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=INFERENCE), timeout=DEADLINE_S)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == (
            health_pb2.HealthCheckResponse.SERVING
        )
        rank.unregister()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_reflection_lists_what_is_for_clients(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        stub = reflection_pb2_grpc.ServerReflectionStub(cluster.channel)
        call = stub.ServerReflectionInfo(timeout=DEADLINE_S)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert {service.name for service in listed} == {
            "baton.v1.Inference",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        call.cancel()


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank(
            "d0",
            answer=lambda start: [
                tokens_of(start, [20]),
                tokens_of(start, [21, 22], first_index=1, last=True),
            ],
        )
        await cluster.add(FakeWorker("p0"), rank)
        await within(replies_of(cluster.generate([11, 12])))
        rank.answer = None
        call = cluster.generate([11])
        await within(rank.starts.get())
        await within(rank.starts.get())
        page = (await http.get("/metrics")).text
        call.cancel()
        for line in (
            'baton_router_requests_total{outcome="length"} 1.0',
            'baton_router_tokens_total{kind="prompt"} 2.0',
            'baton_router_tokens_total{kind="output"} 3.0',
            "baton_router_cached_tokens_total 0.0",
            'baton_router_workers{role="prefill"} 1.0',
            'baton_router_workers{role="decode"} 1.0',
            "baton_router_requests_active 1.0",
            "baton_router_requests_queued 0.0",
            "baton_router_ttft_seconds_count 1.0",
            "baton_router_e2e_seconds_count 1.0",
            "baton_router_itl_seconds_count 2.0",
            "baton_router_queue_seconds_count 2.0",
            'baton_router_ttft_part_seconds_count{part="network"} 1.0',
            'baton_router_second_token_part_seconds_count{part="transfer"} 1.0',
        ):
            assert line in page, line


async def test_prometheus_finds_the_router_and_every_worker(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        router_id = (await http.get("/server_info")).json()["router"]["router_id"]
        router, *workers = (await http.get("/prometheus/targets")).json()
        assert router == {
            "targets": [cluster.started.http_address],
            "labels": {"baton_role": "router", "baton_router": router_id},
        }
        (address,) = router["targets"]
        page = await http.get(f"http://{address}/metrics")
        assert "baton_router_requests_active" in page.text
        rank_labels = {"baton_dp_group": "0", "baton_dp_rank": "0"}
        assert workers == [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": "/workers/d0/metrics",
                    "baton_role": "decode",
                    "baton_worker": "d0",
                }
                | rank_labels,
            },
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": "/workers/p0/metrics",
                    "baton_role": "prefill",
                    "baton_worker": "p0",
                },
            },
        ]
        for each in workers:
            labels = each["labels"]
            page = await http.get(f"http://{address}{labels['__metrics_path__']}")
            assert f'worker="{labels["baton_worker"]}"' in page.text


async def test_a_router_on_ipv6_is_reached_at_the_addresses_that_it_says(tmp_path: Path) -> None:
    async with Cluster(tmp_path, host="::1") as cluster, client(cluster) as http:
        assert cluster.started.http_address.startswith("[::1]:")
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [20], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        assert (await http.get("/health")).status_code == 200
        assert [r.token_ids for r in await within(replies_of(cluster.generate([11])))]
        (target, *_) = (await http.get("/prometheus/targets")).json()
        assert target["targets"] == [cluster.started.http_address]


async def test_server_info_counts_the_queue(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0")
        rank.max_running = 1
        await cluster.add(FakeWorker("p0"), rank)
        calls = [cluster.generate([11]) for _ in range(3)]
        for _ in calls:
            await within(rank.starts.get())
        info = (await http.get("/server_info")).json()
        router = info["router"]
        assert (router["active"], router["capacity"], router["queued"]) == (3, 1, 2)
        page = (await http.get("/metrics")).text
        for name, value in (("active", 3), ("capacity", 1), ("queued", 2)):
            assert f"baton_router_requests_{name} {value}.0" in page
        assert [(w["worker_id"], w["ready"], w["placed"]) for w in info["workers"]] == [
            ("d0", True, 3),
            ("p0", True, 3),
        ]
        for call in calls:
            call.cancel()


async def test_a_stopping_router_ends_what_it_has_and_takes_nothing_new(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        stopping = asyncio.create_task(cluster.server.stop(DEADLINE_S))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError, match="the router is stopping"):
            await within(replies_of(cluster.generate([12])))
        rank.send(tokens_of(start, [20], last=True))
        (reply,) = [r for r in await within(replies_of(call)) if r.token_ids]
        assert list(reply.token_ids) == [20]
        await within(stopping)


async def test_requests_past_the_grace_of_a_stop_fail_and_say_so(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        await within(rank.starts.get())
        await within(cluster.server.stop(grace_s=0.0))
        with pytest.raises(grpc.aio.AioRpcError, match="this router stops"):
            await within(replies_of(call))


@pytest.mark.parametrize("port", ["http_port", "grpc_port", "internal_port"])
async def test_a_port_that_is_taken_is_named_and_nothing_stays_open(
    tmp_path: Path, port: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        options = {port: number}
        before = asyncio.all_tasks()
        with pytest.raises(ConfigError, match=f"port {number}"):
            config = RouterConfig(model_folder(tmp_path), CERTIFICATE, **options)
            await RouterServer(config, ProcessSupervisor()).start()
        assert asyncio.all_tasks() <= before


async def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=r"no tokenizer\.json"):
        await RouterServer(RouterConfig(tmp_path, CERTIFICATE), ProcessSupervisor()).start()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "fastest"}, "expected one of least_load"),
        ({"lease_ms": 0}, "lease_ms is 0"),
        ({"max_queued": -1}, "max_queued is -1"),
        ({"http_port": 70000}, "expected 0 to 65535"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s is nan"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RouterConfig(Path("."), CERTIFICATE, **options)  # type: ignore[arg-type]


def test_an_actor_serves_from_its_own_thread_until_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = folder_of("router", "router-2")
    actor = RouterActor(
        RouterConfig(model_folder(tmp_path), mine, worker_wait_s=0), ProcessSupervisor()
    )
    started = actor.start()
    served = next(line for line in capfd.readouterr().err.splitlines() if "serving HTTP" in line)
    assert (json.loads(served)["worker"], json.loads(served)["role"]) == ("router-2", "router")
    try:
        with grpc.insecure_channel(started.grpc_address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.RpcError, match="no prefill and no decode worker"):
                list(stub.Generate(GenerateRequest(text="hello"), timeout=DEADLINE_S))
        models = httpx.get(f"http://{started.http_address}/v1/models", timeout=DEADLINE_S)
        assert models.status_code == 200
    finally:
        actor.stop(grace_s=0)
        actor.stop(grace_s=0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{started.http_address}/v1/models", timeout=DEADLINE_S)


async def test_a_worker_that_goes_is_a_loss_unless_it_was_leaving(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        lost, left = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), lost, left)
        left.report(leaving=True)
        left.unregister()
        lost.unregister()

        async def without_ranks() -> str | None:
            page = (await http.get("/metrics")).text
            return page if 'baton_router_workers{role="decode"} 0.0' in page else None

        page = await until_answered(without_ranks)
        for worker, losses in (("p0", 0), ("d0", 1), ("d1", 0)):
            line = f'baton_router_worker_losses_total{{worker="{worker}"}} {losses}.0'
            assert line in page, line
