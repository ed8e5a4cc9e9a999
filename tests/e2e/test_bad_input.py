"""Bad input over both protocols: the right code, a message that names the field, and no harm."""

import json
import random

import grpc
import httpx
import pytest
from e2e.clients import DEADLINE_S, greedy_request, grpc_replies, http_greedy, prompts_of

from baton.deploy.cluster.cluster import Cluster
from baton.proto import common_pb2, inference_pb2

pytestmark = pytest.mark.cluster

BODIES = [
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": [320]}, 400, "320"),
    ({"prompt": [-1]}, 400, "prompt"),
    ({"prompt": [5] * 1024}, 400, "1024"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature"),
    ({"prompt": "a", "temperature": 1e9}, 400, "temperature"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p"),
    ({"prompt": "a", "max_tokens": -5}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
    ({"prompt": "a", "stop": [1, 2]}, 400, "stop"),
    ({"prompt": "a", "n": 0}, 400, "n "),
    ({"prompt": "a", "model": "another"}, 404, "another"),
    ({}, 400, "prompt"),
]


@pytest.fixture
async def http(cluster: Cluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S)


@pytest.mark.parametrize(("body", "status", "named"), BODIES)
async def test_a_completion_that_cannot_be(
    cluster: Cluster, http: httpx.AsyncClient, body: dict[str, object], status: int, named: str
) -> None:
    async with http:
        reply = await http.post("/v1/completions", json=body)
    error = reply.json()["error"]
    assert reply.status_code == status and named in error["message"], error
    assert error["type"] and error["code"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": "\xff\xfe"}', 400),
        (b'{"prompt": "' + b"a" * (33 << 20) + b'"}', 413),
    ],
    ids=["empty", "cut", "no object", "not UTF-8", "too large"],
)
async def test_a_body_that_cannot_be(
    cluster: Cluster, http: httpx.AsyncClient, raw: bytes, status: int
) -> None:
    async with http:
        reply = await http.post(
            "/v1/completions", content=raw, headers={"content-type": "application/json"}
        )
    assert reply.status_code == status and reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (inference_pb2.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        (inference_pb2.GenerateRequest(text=""), grpc.StatusCode.INVALID_ARGUMENT),
        (inference_pb2.GenerateRequest(text="a", model="no"), grpc.StatusCode.NOT_FOUND),
        (
            inference_pb2.GenerateRequest(
                text="a", sampling=common_pb2.SamplingParams(temperature=-1)
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            inference_pb2.GenerateRequest(
                text="a", sampling=common_pb2.SamplingParams(top_p=float("nan"))
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (greedy_request([5] * 1024, 4), grpc.StatusCode.INVALID_ARGUMENT),
        (greedy_request([5000], 4), grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["nothing", "empty", "model", "temperature", "nan", "too long", "no such token"],
)
async def test_a_grpc_request_that_cannot_be(
    cluster: Cluster, request_: inference_pb2.GenerateRequest, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await grpc_replies(cluster, request_)
    assert failed.value.code() == code and failed.value.details()


async def test_good_requests_between_bad_ones_are_answered(
    cluster: Cluster, http: httpx.AsyncClient, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [7, 70])
    alone = await http_greedy(cluster, prompts, 12)
    async with http:
        for body, _, _ in BODIES:
            assert (await http.post("/v1/completions", json=body)).is_client_error
    assert await http_greedy(cluster, prompts, 12) == alone
    assert json.dumps(alone)
