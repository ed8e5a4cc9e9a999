"""Ranks that verify drafts, over each channel between processes: their answers are those of one
engine that does not, through hand-offs, a rank's death and the return of states."""

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from e2e.books import settled_findings
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
from baton.proto import inference_pb2, inference_pb2_grpc

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
    """The snapshots that the rank took while it verified drafts are those of plain decoding. Where
    ranks compute no prompts, the prefill worker must have fetched them, for either rank."""
    here = cluster.config.router.prefill_here is None
    for then in (1,) if here else (1, 0):
        prompt, more = prompts_of(rng, [70, 20])
        first = await _ask(cluster, prompt, TURN, rank=1)
        assert list(first.token_ids) == _expected(engine, [prompt], TURN)[0]
        second = [*prompt, *first.token_ids, *more]
        before = _fetched(cluster)
        answer = await _ask(cluster, second, 40, rank=then)
        assert answer.cached_tokens >= engine.config.mamba_track_interval > len(prompt)
        assert list(answer.token_ids) == _expected(engine, [second], 40)[0]
        assert here or _fetched(cluster) > before
    assert _accepted(cluster)


def _fetched(cluster: Cluster) -> float:
    """Return the prefixes that workers have read from others' caches."""
    pages = map(cluster.router.metrics, cluster.workers)
    return total(pages, "baton_worker_prefix_fetches_total", outcome="fetched")


async def test_a_prediction_is_verified_and_changes_nothing(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """Its guesses are those of the answer's text, which may be spelt by other tokens: one text in
    forty shares so few with the answer that nothing is guessed."""
    for _ in range(10):
        plain, told = await _predicted(cluster, str(rng.random()))
        assert told["choices"] == plain["choices"]
        assert "completion_tokens_details" not in plain["usage"]
        details = told["usage"]["completion_tokens_details"]
        if details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]:
            return
    raise AssertionError("no token of ten predictions was verified")


async def _predicted(cluster: Cluster, message: str) -> list[dict[str, Any]]:
    """Return the reply to a message, and the one to it with the first's text as prediction."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": message}],
        "max_tokens": 60,
        "temperature": 0,
        "ignore_eos": True,
    }
    replies: list[dict[str, Any]] = []
    key = {"authorization": f"Bearer {cluster.address.api_key}"}
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as client:
        for _ in range(2):
            if replies:
                text = replies[0]["choices"][0]["message"]["content"]
                body["prediction"] = {"type": "content", "content": text}
            reply = await client.post("/v1/chat/completions", json=body, headers=key)
            assert reply.status_code == 200, reply.text
            replies.append(reply.json())
    return replies


async def test_cancelled_answers_give_back_what_they_own_beside_others(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """Clients leave while drafts are verified; the answers beside theirs are those of plain
    decoding."""
    prompts = prompts_of(rng, [40] * 4)
    expected = _expected(engine, prompts[:1], TURN)
    before = _aborted(cluster)
    for _ in range(20):  # an answer may be over before its client has left
        async with asyncio.TaskGroup() as group:
            stays = group.create_task(http_greedy(cluster, prompts[:1], TURN))
            for prompt in prompts[1:]:
                group.create_task(_leave(cluster, prompt))
        assert stays.result() == expected
        assert not await settled_findings(cluster)
        if _aborted(cluster) > before:
            return
    raise AssertionError("no answer was cancelled while it was decoded")


async def _leave(cluster: Cluster, prompt: list[int]) -> None:
    """Cancel a long answer once a rank decodes it."""
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        key = (("x-api-key", cluster.address.api_key),)
        call = stub.Generate(greedy_request(prompt, LONG), timeout=DEADLINE_S, metadata=key)
        tokens = 0
        async for reply in call:
            tokens += len(reply.token_ids)
            if tokens > 4:
                call.cancel()
                return


def _aborted(cluster: Cluster) -> float:
    """Return the answers that ended early on the decode ranks."""
    ranks = [name for name in cluster.workers if name.startswith("decode")]
    return total(map(cluster.router.metrics, ranks), "baton_worker_requests_total", outcome="abort")


async def test_urgent_requests_go_before_those_that_wait(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """More come at once than the ranks have places for. The last of them is the most urgent."""
    prompts = prompts_of(rng, [20] * 40)
    expected = _expected(engine, prompts, 24)
    asked = [greedy_request(prompt, 24) for prompt in prompts]
    asked[-1].priority = 1000
    answers: list[list[int]] = [[] for _ in prompts]
    began: list[int] = []
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        key = (("x-api-key", cluster.address.api_key),)
        batch = inference_pb2.GenerateBatchRequest(requests=asked)
        async for reply in stub.GenerateBatch(batch, timeout=DEADLINE_S, metadata=key):
            assert not reply.HasField("error"), reply.error
            if not answers[reply.index] and reply.reply.token_ids:
                began.append(reply.index)
            answers[reply.index] += reply.reply.token_ids
    assert answers == expected
    assert len(began) == len(prompts)
    assert began.index(len(prompts) - 1) < len(prompts) - 5  # others, which came before it, waited


async def test_stops_and_minimum_lengths(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [40, 40])
    free = _expected(engine, prompts, TURN)
    for least in (0, 90):
        stops = [free[0][60], free[1][60]]
        more = {"stop_token_ids": stops, "min_tokens": least}
        sampling = SamplingParams(
            temperature=0,
            max_tokens=TURN,
            min_tokens=least,
            stop_token_ids=tuple(stops),
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
