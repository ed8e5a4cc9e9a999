"""Traces and logs of a real cluster: spans at a real OTLP receiver, one access line a request, and
its id in the lines of every worker.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from deploy.collector import Collector, Received, collecting
from kit.polling import until_asked

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.router.config import RouterConfig

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0
TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_n_heads": 4, "num_attention_heads": 4}
PROMPT = [5, 6, 7, 8] * 10
CALL = "POST /v1/completions"
PARTS = {name: 1 for name in ("answer", "queue", "place", "prefill", "transfer", "first decode")}
"""The spans of one answer, and how many there are of each."""


@dataclass(frozen=True)
class Traced:
    cluster: Cluster
    collector: Collector


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), TINY, torch.float32)


@asynccontextmanager
async def _traced(model: Path) -> AsyncIterator[Traced]:
    engine = EngineConfig(model, page_size=16, max_running=4, memory_bytes=128 << 20)
    async with collecting() as collector:
        telemetry = TelemetryOptions(otlp_traces_endpoint=collector.endpoint)
        router = RouterConfig(Path(), telemetry=telemetry, prefill_here=0)
        config = ClusterConfig(engine, router, decode_dp=2)
        cluster = await asyncio.to_thread(Cluster, config)
        with cluster:
            yield Traced(cluster, collector)


@dataclass(frozen=True)
class Caller:
    """The span of a client that calls with W3C's header."""

    trace_id: str
    span_id: str

    @classmethod
    def make(cls) -> "Caller":
        return cls(secrets.token_hex(16), secrets.token_hex(8))

    def headers(self, *, sampled: bool = True) -> dict[str, str]:
        return {
            "traceparent": f"00-{self.trace_id}-{self.span_id}-0{int(sampled)}",
            "tracestate": "vendor=kept",
        }


def body_of(tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more,
    }  # fmt: skip


def family(spans: list[Received]) -> dict[str, list[Received]]:
    """Return the spans by name."""
    found: dict[str, list[Received]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


def lines_of(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the lines of all logs of router and workers."""
    return [
        json.loads(line)
        for path in cluster.logs.glob("worker-*.err")
        for line in path.read_text().splitlines()
        if line.startswith("{")
    ]


async def access_line(cluster: Cluster, request_id: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        lines = [line for line in lines_of(cluster) if line["logger"] == "baton.access"]
        return [line for line in lines if line["request_id"] == request_id]

    (line,) = await until_asked(found)
    return line


async def test_a_cluster_traces_and_logs_its_requests(model: Path) -> None:
    async with _traced(model) as traced:
        await a_request_is_one_tree_of_spans(traced)
        await a_batch_has_a_tree_for_each_answer(traced)
        await a_grpc_call_is_traced(traced)
        await a_caller_that_samples_nothing_is_obeyed(traced)
        await a_request_that_is_placed_again_has_two_places(traced)
        no_secret_is_in_any_line(traced)


async def a_request_is_one_tree_of_spans(traced: Traced) -> None:
    cluster, caller, request_id = traced.cluster, Caller.make(), f"test-{secrets.token_hex(4)}"
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        headers = caller.headers() | {"x-request-id": request_id}
        reply = await http.post("/v1/completions", json=body_of(8), headers=headers)
    assert reply.status_code == 200, reply.text
    spans = await traced.collector.until(caller.trace_id, {CALL: 1, **PARTS})
    by_name = family(spans)
    assert {name: len(found) for name, found in by_name.items()} == {CALL: 1, **PARTS}
    one = {name: found[0] for name, found in by_name.items()}
    call, answer, place = one[CALL], one["answer"], one["place"]
    assert call.parent == caller.span_id
    assert answer.parent == call.id
    assert one["queue"].parent == place.parent == answer.id
    for name in ("prefill", "transfer", "first decode"):
        assert one[name].parent == place.id
    rank = place.attributes["rank"]
    assert one["prefill"].process == "prefill-0"
    assert one["transfer"].process == one["first decode"].process == rank
    assert call.process == answer.process == place.process
    assert all(each.span.trace_state == "vendor=kept" for each in spans)
    for each in spans:
        assert each.span.start_time_unix_nano <= each.span.end_time_unix_nano
        assert not each.failed
    begins = {name: each.span.start_time_unix_nano for name, each in one.items()}
    assert begins[CALL] <= begins["answer"] <= begins["place"]
    assert begins["place"] <= begins["first decode"]
    assert answer.attributes["output_tokens"] == 8
    line = await access_line(cluster, request_id)
    expected = {
        "call": "POST /v1/completions", "status": 200, "reason": "length", "key": None,
        "prompt_tokens": len(PROMPT), "output_tokens": 8, "cached_tokens": 0,
    }  # fmt: skip
    assert expected.items() <= line.items()
    assert 0 < line["ttft_ms"] <= line["total_ms"]
    # The answer's own id, which the line names, is in the lines of both workers.
    own = [each for each in lines_of(cluster) if each.get("request_id") == line["answers"]]
    workers = {each["worker"] for each in own}
    assert workers == {"prefill-0", rank}
    assert answer.attributes["request_id"] == line["answers"]


async def a_batch_has_a_tree_for_each_answer(traced: Traced) -> None:
    cluster, caller = traced.cluster, Caller.make()
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        reply = await http.post("/v1/completions", json=body_of(4, n=2), headers=caller.headers())
    assert reply.status_code == 200, reply.text
    counts = {CALL: 1} | {name: 2 * count for name, count in PARTS.items()}
    by_name = family(await traced.collector.until(caller.trace_id, counts))
    (call,) = by_name[CALL]
    assert [each.parent for each in by_name["answer"]] == [call.id] * 2
    answers = {each.id for each in by_name["answer"]}
    assert {each.parent for each in by_name["place"]} == answers
    places = {each.id for each in by_name["place"]}
    for name in ("prefill", "transfer", "first decode"):
        assert {each.parent for each in by_name[name]} == places


async def a_grpc_call_is_traced(traced: Traced) -> None:
    cluster, caller, request_id = traced.cluster, Caller.make(), f"test-{secrets.token_hex(4)}"
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=common_pb2.SamplingParams(max_tokens=3, ignore_eos=True, temperature=0),
        stream=True,
    )
    metadata = (*caller.headers().items(), ("x-request-id", request_id))
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        async for _ in stub.Generate(request, timeout=DEADLINE_S, metadata=metadata):
            pass
    by_name = family(await traced.collector.until(caller.trace_id, {"Generate": 1, **PARTS}))
    assert by_name["Generate"][0].parent == caller.span_id
    line = await access_line(cluster, request_id)
    assert {"call": "Generate", "status": "OK", "output_tokens": 3}.items() <= line.items()


async def a_caller_that_samples_nothing_is_obeyed(traced: Traced) -> None:
    cluster, silent, caller = traced.cluster, Caller.make(), Caller.make()
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        for who, sampled in ((silent, False), (caller, True)):
            headers = who.headers(sampled=sampled)
            reply = await http.post("/v1/completions", json=body_of(4), headers=headers)
            assert reply.status_code == 200, reply.text
    await traced.collector.until(caller.trace_id, {CALL: 1, **PARTS})
    assert traced.collector.of_trace(silent.trace_id) == []


async def a_request_that_is_placed_again_has_two_places(traced: Traced) -> None:
    cluster, caller = traced.cluster, Caller.make()
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        body = body_of(400, stream=True, routed_dp_rank=1)
        async with http.stream(
            "POST", "/v1/completions", json=body, headers=caller.headers()
        ) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            await asyncio.to_thread(cluster.kill, "decode-1")
            rest = [line async for line in lines]
    assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
    counts = {CALL: 1, "answer": 1, "queue": 2, "place": 2, "prefill": 2, "transfer": 1}
    by_name = family(await traced.collector.until(caller.trace_id, counts))
    (answer,) = by_name["answer"]
    first, second = sorted(by_name["place"], key=lambda each: int(each.attributes["attempt"]))
    assert first.parent == second.parent == answer.id
    assert first.attributes["rank"] == "decode-1" and first.failed
    assert not second.failed and not answer.failed
    assert [each.attributes["attempt"] for each in by_name["queue"]] == [1, 2]
    # The lost rank may not have sent its spans; what there is belongs to its own attempt.
    prefills = {each.parent for each in by_name["prefill"]}
    assert prefills == {first.id, second.id}
    assert {each.parent for each in by_name["first decode"]} <= {first.id, second.id}
    assert any(each.parent == second.id for each in by_name["transfer"])
    assert answer.attributes["output_tokens"] == 400


def no_secret_is_in_any_line(traced: Traced) -> None:
    key = traced.cluster.address.api_key
    for path in traced.cluster.logs.glob("worker-*.err"):
        said = path.read_text()
        assert not key or key not in said
        assert str(PROMPT)[1:-1] not in said


@pytest.fixture(autouse=True)
def _python_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a sampler of the environment decide nothing here, and let no span wait for others."""
    monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # by default 5,000 ms
    yield
