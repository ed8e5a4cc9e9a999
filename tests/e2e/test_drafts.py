"""Ranks that verify drafts, over each channel between processes: their answers are those of one
engine that does not, through hand-offs, a rank's death and the return of states."""

import asyncio
import random
from pathlib import Path

import grpc
import pytest
from e2e.clients import (
    DEADLINE_S,
    assert_same_where_it_went_on,
    greedy_request,
    http_greedy,
    prompts_of,
)
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import StreamedAnswer, exchange
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine
from baton.proto import inference_pb2_grpc

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("running_cluster", ["nixl", "grpc"], indirect=True, scope="session"),
]

LONG = 960  # tokens of an answer: the context, but for the prompt
TURN = 300  # tokens: past the first snapshot of a row that decodes


def _expected(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return [list(output.token_ids) for output in engine.generate(prompts, greedy)]


def _accepted(cluster: Cluster) -> float:
    """Return the drafts that were right, on the ranks that run now: one may be on its way back."""
    workers = cluster.router.server_info()["workers"]
    ranks = [w["worker_id"] for w in workers if w["role"] == "decode" and w["ready"]]
    pages = [cluster.router.metrics(rank) for rank in ranks]
    return total(pages, "baton_engine_drafts_accepted_total")


def _busiest(cluster: Cluster) -> str:
    """Return the decode rank with most requests."""
    ranks = [w for w in cluster.router.server_info()["workers"] if w["role"] == "decode"]
    busiest = max(ranks, key=lambda rank: int(rank["placed"]))
    assert int(busiest["placed"]), "all requests have ended"
    return str(busiest["worker_id"])


async def _streamed(cluster: Cluster, prompt: list[int], decoding: asyncio.Event) -> list[int]:
    """Answer a prompt; tell when a rank has begun to decode it."""
    tokens: list[int] = []
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        key = (("x-api-key", cluster.address.api_key),)
        request = greedy_request(prompt, LONG)
        async for reply in stub.Generate(request, timeout=DEADLINE_S, metadata=key):
            tokens += reply.token_ids
            if len(tokens) > 1:  # the first is the prefill worker's
                decoding.set()
    return tokens


async def test_answers_go_on_where_their_rank_is_killed(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [30] * 4)
    expected = _expected(engine, prompts, LONG)
    began = [asyncio.Event() for _ in prompts]
    before = total([cluster.router.metrics()], "baton_router_retries_total")
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(_streamed(cluster, prompt, event))
            for prompt, event in zip(prompts, began, strict=True)
        ]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(
                [group.create_task(event.wait()) for event in began],
                return_when=asyncio.FIRST_COMPLETED,
            )
            killed = await asyncio.to_thread(_busiest, cluster)
            cluster.kill(killed)
            for event in began:
                await event.wait()
    answers = [task.result() for task in asked]
    assert_same_where_it_went_on(oracle, model, prompts, answers, expected)
    assert total([cluster.router.metrics()], "baton_router_retries_total") > before
    assert _accepted(cluster)


async def test_the_state_of_an_answer_returns_to_the_next_turn_s_prefill(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """The snapshots that the rank took while it verified drafts are those of plain decoding."""
    prompt, more = prompts_of(rng, [70, 20])
    first = await _ask(cluster, prompt, TURN, rank=1)
    assert list(first.token_ids) == _expected(engine, [prompt], TURN)[0]
    second = [*prompt, *first.token_ids, *more]
    answer = await _ask(cluster, second, 40, rank=1)
    assert answer.cached_tokens >= engine.config.mamba_track_interval > len(prompt)
    assert list(answer.token_ids) == _expected(engine, [second], 40)[0]
    assert _accepted(cluster)


async def test_stops_and_minimum_lengths(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [40, 40])
    free = _expected(engine, prompts, TURN)
    for least in (0, 90):
        more = {"stop_token_ids": [free[0][60], free[1][60]], "min_tokens": least}
        sampling = SamplingParams(
            temperature=0,
            max_tokens=TURN,
            min_tokens=least,
            stop_token_ids=tuple(more["stop_token_ids"]),
        )
        expected = [list(output.token_ids) for output in engine.generate(prompts, sampling)]
        answers = await http_greedy(cluster, prompts, TURN, **more, ignore_eos=False)
        assert answers == expected
        assert all(len(answer) >= least for answer in answers)
    assert _accepted(cluster)


async def _ask(cluster: Cluster, prompt: list[int], tokens: int, rank: int) -> StreamedAnswer:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "routed_dp_rank": rank}  # fmt: skip
    return (await exchange(cluster.address, body, DEADLINE_S)).answer()
