"""A client that goes away: its request ends on both workers, and gives back what it owned."""

import asyncio
import json
import random

import grpc
import httpx
import pytest
from e2e.books import settled_findings
from e2e.clients import greedy_request, http_greedy, prompts_of

from baton.bench.cluster.scrape import total
from baton.deploy.cluster.cluster import Cluster
from baton.proto import inference_pb2_grpc

pytestmark = pytest.mark.cluster

LONG = 900  # tokens of an answer: seconds of decoding
DEADLINE_S = 60.0


def _ended(cluster: Cluster) -> float:
    """Requests that finished by themselves, on the decode ranks."""
    workers = cluster.router.server_info()["workers"]
    decode = [w["worker_id"] for w in workers if w["role"] == "decode"]
    return total(
        map(cluster.router.metrics, decode), "baton_worker_requests_total", outcome="length"
    )


async def _start_and_leave(cluster: Cluster, prompt: list[int], tokens: int) -> None:
    """Read `tokens` events of a long answer over HTTP, then close the connection."""
    body = {"prompt": prompt, "max_tokens": LONG, "temperature": 0, "ignore_eos": True,
            "stream": True, "return_token_ids": True}  # fmt: skip
    payload = json.dumps(body).encode()
    host, port = cluster.http_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(payload)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + payload)
    for _ in range(tokens):
        await reader.readuntil(b"data: {")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("tokens", [0, 1, 8], ids=["at once", "at the first token", "decoding"])
async def test_a_connection_that_closes(cluster: Cluster, rng: random.Random, tokens: int) -> None:
    before = _ended(cluster)
    prompts = prompts_of(rng, [100] * 4)
    leaving = [_start_and_leave(cluster, prompt, tokens) for prompt in prompts]
    await asyncio.wait_for(asyncio.gather(*leaving), DEADLINE_S)
    assert not await settled_findings(cluster)
    assert _ended(cluster) == before  # none of them was decoded to its end
    await http_greedy(cluster, prompts[:1], 4)


async def test_a_request_past_its_timeout(cluster: Cluster, rng: random.Random) -> None:
    before = _ended(cluster)
    prompts = prompts_of(rng, [100] * 4)
    body = {"max_tokens": LONG, "temperature": 0, "ignore_eos": True, "timeout": 0.2}
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as client:
        asking = [client.post("/v1/completions", json=body | {"prompt": each}) for each in prompts]
        replies = await asyncio.gather(*asking)
    assert [reply.status_code for reply in replies] == [504] * 4
    assert not await settled_findings(cluster)
    assert _ended(cluster) == before
    await http_greedy(cluster, prompts[:1], 4)


async def test_a_grpc_call_that_is_cancelled(cluster: Cluster, rng: random.Random) -> None:
    before = _ended(cluster)
    prompt = prompts_of(rng, [64])[0]
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(greedy_request(prompt, LONG))
        await asyncio.wait_for(call.read(), DEADLINE_S)
        call.cancel()
    assert not await settled_findings(cluster)
    assert _ended(cluster) == before
    await http_greedy(cluster, [prompt], 4)
