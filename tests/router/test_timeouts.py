"""The time that a client gives its request: a real router, and ranks that the test plays."""

import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from kit.polling import until_answered
from router_neighbours import Cluster, replies_of

from baton.proto.worker_pb2 import RequestTokens, StartRequest

TEXT = "hez"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 9},
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "hello", "max_output_tokens": 9},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 9}},
}


def some(start: StartRequest) -> Iterable[RequestTokens]:
    """Begins an answer and never ends it."""
    yield tokens_of(start, list(TEXT.encode()))


@pytest.fixture
async def rank(tmp_path: Path) -> AsyncIterator[tuple[FakeRank, Cluster]]:
    rank = FakeRank("d0", answer=some)
    async with Cluster(tmp_path) as cluster:
        await cluster.add(FakeWorker("p0"), rank)
        yield rank, cluster


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_ends_at_its_timeout_everywhere(
    rank: tuple[FakeRank, Cluster], path: str
) -> None:
    neighbour, cluster = rank
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
        reply = await client.post(path, json=BODIES[path] | {"timeout": 0.3})
        assert reply.status_code == 504, reply.text
        error = reply.json()["error"]
        assert "within its timeout of 0.3 s" in error["message"]
        assert error["type"] == "timeout_error"
        while not neighbour.starts.empty():  # on a slow machine none may have got there in time
            start = await within(neighbour.starts.get())
            cancel = await within(neighbour.cancels.get())
            assert (cancel.request_id, cancel.reason) == (start.request_id, "deadline_exceeded")
        await cluster.until(lambda workers: workers["d0"]["placed"] == 0)
        for wrong in (0, -1, -0.5):
            reply = await client.post(path, json=BODIES[path] | {"timeout": wrong})
            assert reply.status_code == 400 and "timeout" in reply.json()["error"]["message"]
        reply = await client.post(path, json=BODIES[path] | {"timeout": "soon"})
        assert reply.status_code == 400
        assert neighbour.starts.empty()


async def test_a_stream_has_what_came_in_time_and_then_the_error(
    rank: tuple[FakeRank, Cluster],
) -> None:
    neighbour, cluster = rank
    neighbour.answer = lambda start: [tokens_of(start, start.prompt_ids)]
    body = {"prompt": TEXT, "max_tokens": 9, "stream": True, "stop": "zz"}
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
        for seconds in (0.5, 5, 25):  # a slow machine needs more of them
            reply = await client.post("/v1/completions", json=body | {"timeout": seconds})
            start = await within(neighbour.starts.get())
            if reply.status_code == 200:
                break
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert reply.status_code == 200 and lines[-1] == "[DONE]"
    *parts, failed = map(json.loads, lines[:-1])
    # The last z might have become the stop string; nothing is held back at the end.
    assert "".join(part["choices"][0]["text"] for part in parts) == TEXT
    assert failed["error"]["code"] == "deadline_exceeded"
    assert f"within its timeout of {seconds:g} s" in failed["error"]["message"]
    assert (await within(neighbour.cancels.get())).request_id == start.request_id


async def test_the_servers_own_limit_holds_where_it_is_shorter(tmp_path: Path) -> None:
    async with Cluster(tmp_path, request_timeout_s=0.3) as cluster:
        await cluster.add(FakeWorker("p0"), FakeRank("d0", answer=some))
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            reply = await client.post(
                "/v1/completions", json=BODIES["/v1/completions"] | {"timeout": 50}
            )
    assert reply.status_code == 504
    assert reply.json()["error"]["message"] == "the answer took longer than 0.3 s"


async def test_a_grpc_deadline_is_the_requests_own(rank: tuple[FakeRank, Cluster]) -> None:
    """The router stops the work itself; it does not depend on gRPC to tell it."""
    neighbour, cluster = rank
    neighbour.answer = None
    call = cluster.generate([11], timeout=1.0)
    start = await within(neighbour.starts.get())
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await within(replies_of(call))
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await within(neighbour.cancels.get())).request_id == start.request_id
    await cluster.until(lambda workers: workers["d0"]["placed"] == 0)


async def test_requests_that_ended_early_are_in_the_metrics_with_what_they_had(
    rank: tuple[FakeRank, Cluster],
) -> None:
    neighbour, cluster = rank
    body = {"prompt": [65, 66], "max_tokens": 9, "stream": True}
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            await within(anext(reply.aiter_lines()))  # the client leaves behind its first token
        await within(neighbour.cancels.get())
        neighbour.answer = None
        reply = await client.post("/v1/completions", json=body | {"timeout": 0.2})
        assert reply.status_code == 504
        found = await _page_with(client, "baton_router_requests_active 0.0")
    for line in (
        'baton_router_requests_total{outcome="cancelled"} 1.0',
        'baton_router_requests_total{outcome="deadline_exceeded"} 1.0',
        'baton_router_tokens_total{kind="prompt"} 2.0',
        f'baton_router_tokens_total{{kind="output"}} {len(TEXT)}.0',
        "baton_router_ttft_seconds_count 1.0",
        "baton_router_e2e_seconds_count 2.0",
    ):
        assert line in found, line


async def _page_with(client: httpx.AsyncClient, line: str) -> str:
    """Return the page of metrics once it has a line."""

    async def page() -> str | None:
        found = (await client.get("/metrics")).text
        return found if line in found else None

    return await until_answered(page)
