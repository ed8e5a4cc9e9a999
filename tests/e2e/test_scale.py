"""Workers join and leave while requests run: none is lost, and every token is what it was."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from e2e.clients import assert_same_where_it_went_on, http_greedy, prompts_of
from kit.polling import until_asked
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import complete
from baton.core.role import Role
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

N = 24
LONG = 960  # tokens of an answer: the context, but for the prompt
DEADLINE_S = 180.0
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
LENGTHS = (1, 17, 40, 64, 100, 200)
ROUND_GRIDS = (15, 16, 63, 65, 300)
"""Pages are of 16 tokens here, kernel chunks of 32, prefill chunks of 64."""


def _expected(engine: Engine, prompts: list[list[int]], n: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    return [list(output.token_ids) for output in engine.generate(prompts, params)]


async def _scale(cluster: Cluster, role: Role, count: int, drain_s: float = 30.0) -> None:
    await asyncio.wait_for(asyncio.to_thread(cluster.scale, role, count, drain_s), DEADLINE_S)


def _states(cluster: Cluster) -> dict[str, str]:
    return {w["worker_id"]: w["state"] for w in cluster.router.server_info()["workers"]}


def _channels_of_prefills(cluster: Cluster) -> set[str]:
    """Empty until both have handed something over."""
    workers = {w["worker_id"]: w["channels"] for w in cluster.router.server_info()["workers"]}
    prefills = [workers.get(f"prefill-{n}", {}) for n in range(2)]
    if not all(prefills):
        return set()
    return {how.partition(":")[0] for of in prefills for how in of.values()}


def _counted(cluster: Cluster, name: str, worker: str) -> float:
    return total([cluster.router.metrics()], name, worker=worker)


@pytest_asyncio.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """The shared cluster with one prefill worker and two ranks, whatever a test before left."""
    for role, count in ((Role.PREFILL, 1), (Role.DECODE, 2)):
        if len([name for name in _states(cluster) if name.startswith(role.value)]) != count:
            await _scale(cluster, role, count)
    return cluster


async def _placed_on(cluster: Cluster, worker: str) -> None:
    """Wait until a request is placed there."""
    had = _counted(cluster, "baton_router_placements_total", worker)
    await until_asked(lambda: _counted(cluster, "baton_router_placements_total", worker) != had)


@asynccontextmanager
async def _stream_of_requests(
    cluster: Cluster, prompts: list[list[int]], expected: list[list[int]]
) -> AsyncIterator[None]:
    """Run as many clients as there are prompts, each asking again and again, and assert that every
    answer is right."""
    over = asyncio.Event()

    async def client(prompt: list[int], answer: list[int]) -> int:
        count = 0
        while not over.is_set():
            assert await http_greedy(cluster, [prompt], N) == [answer]
            count += 1
        return count

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(client(*pair)) for pair in zip(prompts, expected, strict=True)]
        yield
        over.set()
    print(f"{sum(task.result() for task in clients)} requests answered meanwhile")


async def _tokens(lines: AsyncIterator[str], most: int) -> list[int]:
    """The next `most` tokens of a stream of events, or fewer where it ends."""
    ids: list[int] = []
    while len(ids) < most and (line := await anext(lines, None)) is not None:
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            ids += [token for choice in event["choices"] for token in choice["token_ids"]]
    return ids


async def test_decode_ranks_join_and_leave_under_load(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, LENGTHS)
    expected = _expected(engine, prompts, N)
    await http_greedy(cluster, prompts[:1], N)
    async with _stream_of_requests(cluster, prompts, expected):
        await _scale(cluster, Role.DECODE, 3)
        await _placed_on(cluster, "decode-2")
        body = {**GREEDY, "max_tokens": LONG, "prompt": prompts[0], "routed_dp_rank": 2}
        async with (
            httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http,
            http.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply,
        ):
            lines = reply.aiter_lines()
            long = await _tokens(lines, 2)
            replaced = _counted(cluster, "baton_router_retries_total", "decode-2")
            leaving = asyncio.create_task(_scale(cluster, Role.DECODE, 1, DEADLINE_S))
            await until_asked(lambda: _states(cluster).get("decode-2") == "draining")
            long += await _tokens(lines, LONG)
        await leaving
        assert [long] == _expected(engine, prompts[:1], LONG)
        assert set(_states(cluster)) == {"prefill-0", "decode-0"}
        assert _counted(cluster, "baton_router_retries_total", "decode-2") == replaced, (
            "the drain was long enough"
        )
        await _scale(cluster, Role.DECODE, 2)
        await _placed_on(cluster, "decode-1")


async def test_what_a_rank_has_not_ended_by_its_deadline_goes_on_elsewhere(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [30, 31])
    body = {**GREEDY, "max_tokens": LONG}
    before = _counted(cluster, "baton_router_retries_total", "decode-1")
    asked = [
        asyncio.create_task(complete(cluster.http_url, body | {"prompt": prompt}, DEADLINE_S))
        for prompt in prompts
    ]
    await _placed_on(cluster, "decode-1")
    await _scale(cluster, Role.DECODE, 1, drain_s=0.0)
    answers = [list(answer.token_ids) for answer in await asyncio.gather(*asked)]
    assert_same_where_it_went_on(oracle, model, prompts, answers, _expected(engine, prompts, LONG))
    assert _counted(cluster, "baton_router_retries_total", "decode-1") == before + 1
    # Who asked for that rank gets an answer all the same.
    assert await http_greedy(cluster, prompts, N, routed_dp_rank=1) == [a[:N] for a in answers]
    await _scale(cluster, Role.DECODE, 2)


async def test_two_prefill_workers_and_two_ranks_say_what_one_engine_says(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """A worker that joins later is found over NIXL as the first one was. For gRPC, see
    test_same_tokens."""
    prompts = prompts_of(rng, (*LENGTHS, *ROUND_GRIDS))
    expected = _expected(engine, prompts, N)
    await _scale(cluster, Role.PREFILL, 2)
    for _ in range(2):  # the second time with prefix hits, on both
        assert await http_greedy(cluster, prompts, N) == expected
    sampled: dict[str, Any] = {"temperature": 0.9, "top_k": 50, "seed": rng.randrange(2**63)}
    params = SamplingParams(max_tokens=N, ignore_eos=True, **sampled)
    outputs = engine.generate(prompts[:4], params)
    assert await http_greedy(cluster, prompts[:4], N, **sampled) == [
        list(output.token_ids) for output in outputs
    ]
    await until_asked(lambda: _channels_of_prefills(cluster) == {"nixl"})
    async with _stream_of_requests(cluster, prompts, expected):
        await _scale(cluster, Role.PREFILL, 1)
    assert set(_states(cluster)) == {"prefill-0", "decode-0", "decode-1"}


async def test_a_pinned_request_is_decoded_by_its_rank(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [20, 50])
    page = cluster.router.metrics
    for rank in (1, 0):
        had = total([page(f"decode-{rank}")], "baton_worker_tokens_total", kind="output")
        assert await http_greedy(cluster, prompts, N, routed_dp_rank=rank) == _expected(
            engine, prompts, N
        )
        # The first of each is sampled by the prefill worker.
        has = total([page(f"decode-{rank}")], "baton_worker_tokens_total", kind="output")
        assert has == had + 2 * (N - 1)
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        body = {"prompt": [5], "max_tokens": 1, "routed_dp_rank": 64}
        reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "routed_dp_rank is 64; the decode ranks are 0, 1"
