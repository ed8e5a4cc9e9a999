"""A decode rank that goes before the answer's end: another one goes on where it stopped."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from prometheus_client.parser import text_string_to_metric_families
from router_neighbours import Cluster, random_ids, replies_of

from baton.proto import common_pb2
from baton.proto.inference_pb2 import GenerateReply
from baton.proto.worker_pb2 import RequestTokens, StartRequest


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def client(cluster: Cluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S)


def ended(start: StartRequest, code: common_pb2.ErrorCode, retryable: bool) -> RequestTokens:
    error = common_pb2.Error(code=code, retryable=retryable, origin="d0", message="no more of this")
    done = common_pb2.Finished(reason=common_pb2.ERROR, error=error)
    return RequestTokens(
        request_id=start.request_id,
        attempt=start.attempt,
        first_index=len(start.output_ids),
        finished=done,
    )


def leaves(worker_id: str, workers: dict[str, dict[str, object]]) -> bool:
    return workers[worker_id]["state"] == "draining"


def rest_of(again: StartRequest, answer: list[int]) -> RequestTokens:
    """Return the rest of the answer as one message: the router may hear that a rank is gone before
    the rank's last word."""
    given = list(again.output_ids)
    assert answer[: len(given)] == given
    return tokens_of(again, answer[len(given) :], first_index=len(given), last=True)


def ids_of(replies: list[GenerateReply]) -> list[int]:
    """Fails where an index is missing or comes twice."""
    ids: list[int] = []
    for reply in replies:
        assert not reply.token_ids or reply.first_index == len(ids)
        ids += reply.token_ids
    return ids


async def event_of(lines: AsyncIterator[str]) -> dict[str, Any]:
    """The next one of a stream of events."""
    async for line in lines:
        if line.startswith("data: {"):
            return dict(json.loads(line.removeprefix("data: ")))
    raise AssertionError("the stream is over")


async def counted(cluster: Cluster, name: str) -> dict[str, float]:
    """Return the values of one of the router's metrics, by worker."""
    async with client(cluster) as http:
        page = (await http.get("/metrics")).text
    return {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_the_next_rank_is_given_the_tokens_so_far_and_the_same_seed(
    tmp_path: Path, rng: random.Random
) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first)
        prompt, answer = random_ids(rng, 5), random_ids(rng, 7)
        call = cluster.generate(prompt, max_tokens=7, temperature=1.0)
        start = await within(first.starts.get())
        first.send(tokens_of(start, answer[:3]))
        replies = [await within(call.read())]
        await cluster.add(second)
        first.hang_up()
        again = await within(second.starts.get())
        assert (again.request_id, again.attempt) == (start.request_id, 2)
        assert (list(again.prompt_ids), list(again.output_ids)) == (prompt, answer[:3])
        assert again.sampling == start.sampling and again.sampling.seed
        second.send(tokens_of(again, answer[3:], first_index=3, last=True))
        replies += await within(replies_of(call))
        assert ids_of(replies) == answer
        assert replies[-1].finished.usage.completion_tokens == 7
        assert replies[-1].finished.timings.ttft_us > 0
        assert await counted(cluster, "baton_router_retries_total") == {"d0": 1, "d1": 0}
        assert await counted(cluster, "baton_router_migrations_total") == {"d0": 1, "d1": 0}
        assert await counted(cluster, "baton_router_placements_total") == {"d0": 1, "d1": 1}
        assert await counted(cluster, "baton_router_prefill_placements_total") == {"p0": 2}


async def test_nothing_is_placed_on_a_rank_that_leaves_and_what_it_gives_up_goes_on(
    tmp_path: Path,
) -> None:
    """Its deadline to end what it has is over."""
    async with Cluster(tmp_path) as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first)
        call = cluster.generate([11], max_tokens=3)
        start = await within(first.starts.get())
        first.send(tokens_of(start, [20]))
        await cluster.add(second)
        first.report(leaving=True)
        await cluster.until(lambda workers: workers["d0"]["state"] == "draining")
        first.send(ended(start, common_pb2.UNAVAILABLE, retryable=True))
        again = await within(second.starts.get())
        first.send(tokens_of(start, [66], first_index=1))  # too late
        second.send(tokens_of(again, [21, 22], first_index=1, last=True))
        assert ids_of(await within(replies_of(call))) == [20, 21, 22]
        assert first.starts.empty()


async def test_prompt_scores_are_not_asked_for_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        ranks = [FakeRank("d0"), FakeRank("d1")]
        await cluster.add(FakeWorker("p0"), *ranks)
        call = cluster.generate([11, 12], max_tokens=2, prompt_logprobs_start=0)
        start = await within(ranks[0].starts.get())
        assert start.sampling.HasField("prompt_logprobs_start")
        scores = [common_pb2.TokenLogprob(token_id=i, logprob=-1.0) for i in (11, 12)]
        part = tokens_of(start, [20])
        part.prompt_logprobs.tokens.extend(scores)
        ranks[0].send(part)
        replies = [await within(call.read())]
        ranks[0].hang_up()
        again = await within(ranks[1].starts.get())
        assert not again.sampling.HasField("prompt_logprobs_start")
        ranks[1].send(tokens_of(again, [21], first_index=1, last=True))
        replies += await within(replies_of(call))
        assert [t.token_id for r in replies for t in r.prompt_logprobs.tokens] == [11, 12]


async def test_what_would_fail_anywhere_is_not_tried_again(tmp_path: Path) -> None:
    def refuse(start: StartRequest) -> Iterable[RequestTokens]:
        yield ended(start, common_pb2.TOO_LARGE, retryable=False)

    async with Cluster(tmp_path) as cluster:
        ranks = [FakeRank("d0", answer=refuse), FakeRank("d1", answer=refuse)]
        await cluster.add(FakeWorker("p0"), *ranks)
        with pytest.raises(grpc.aio.AioRpcError, match="no more of this"):
            await within(replies_of(cluster.generate([11])))
        assert ranks[0].starts.qsize() + ranks[1].starts.qsize() == 1


async def test_a_request_that_every_rank_loses_ends_with_the_last_ones_reason(
    tmp_path: Path,
) -> None:
    def lose(start: StartRequest) -> Iterable[RequestTokens]:
        yield ended(start, common_pb2.UNAVAILABLE, retryable=True)

    async with Cluster(tmp_path, policy="least_load") as cluster:
        ranks = [FakeRank(f"d{i}", answer=lose) for i in range(4)]
        for load, rank in enumerate(ranks):
            rank.running = load
        await cluster.add(FakeWorker("p0"), *ranks)
        with pytest.raises(grpc.aio.AioRpcError, match="no more of this"):
            await within(replies_of(cluster.generate([11])))
        assert [rank.starts.qsize() for rank in ranks] == [1, 1, 1, 0]


async def test_a_request_that_nobody_takes_says_who_lost_it_and_keeps_its_tokens(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, worker_wait_s=0.05) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11], max_tokens=3)
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [20]))
        assert list((await within(call.read())).token_ids) == [20]
        rank.unregister()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await within(replies_of(call))
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        details = failed.value.details() or ""
        assert "decode rank d0 was lost" in details and "no decode worker is ready" in details


async def test_an_abort_reaches_a_request_that_waits_for_another_rank(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        body = {"input_ids": [11], "rid": "r", "sampling_params": {"max_new_tokens": 3}}
        request = http.build_request("POST", "/generate", json=body | {"stream": True})
        asked = asyncio.create_task(http.send(request, stream=True))
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [20]))
        lines = (await within(asked)).aiter_lines()
        assert (await within(event_of(lines)))["output_ids"] == [20]
        rank.unregister()
        await cluster.until(lambda workers: "d0" not in workers)
        await http.post("/abort_request", json={"rid": "r"})
        reply = await within(event_of(lines))
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert reply["output_ids"] == [20]


async def test_a_pinned_request_waits_for_its_own_rank(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        ranks = [FakeRank("d0"), FakeRank("d1", incarnation=1)]
        await cluster.add(FakeWorker("p0"), *ranks)
        body = {"input_ids": [11], "routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 2}}
        asked = asyncio.create_task(http.post("/generate", json=body))
        start = await within(ranks[1].starts.get())
        ranks[1].send(tokens_of(start, [20]))
        ranks[1].unregister()
        await cluster.until(lambda workers: "d1" not in workers)
        back = FakeRank("d1", incarnation=2)
        await cluster.add(back)
        again = await within(back.starts.get())
        assert ranks[0].starts.empty()
        back.send(rest_of(again, [20, 21]))
        assert (await within(asked)).json()["output_ids"] == [20, 21]


async def test_a_pinned_answer_that_its_rank_leaves_for_good_goes_on_elsewhere(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        ranks = [FakeRank("d0"), FakeRank("d1")]
        await cluster.add(FakeWorker("p0"), *ranks)
        body = {"input_ids": [11], "routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 2}}
        asked = asyncio.create_task(http.post("/generate", json=body))
        start = await within(ranks[1].starts.get())
        ranks[1].send(tokens_of(start, [20]))
        ranks[1].report(leaving=True)
        await cluster.until(lambda workers: workers["d1"]["state"] == "draining")
        ranks[1].send(ended(start, common_pb2.UNAVAILABLE, retryable=True))
        again = await within(ranks[0].starts.get())
        ranks[0].send(tokens_of(again, [21], first_index=1, last=True))
        assert (await within(asked)).json()["output_ids"] == [20, 21]
        fresh = asyncio.create_task(http.post("/generate", json=body, timeout=20))
        ranks[0].send(rest_of(await within(ranks[0].starts.get()), [20, 21]))
        assert (await within(fresh)).json()["output_ids"] == [20, 21]
        wrong = await http.post("/generate", json=body | {"routed_dp_rank": 2})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["message"] == "routed_dp_rank is 2; the decode ranks are 0"


async def test_an_answer_goes_on_however_many_of_its_ranks_leave(tmp_path: Path) -> None:
    """A rolling restart may overtake one answer on every rank; only lost ranks are its fault."""
    async with Cluster(tmp_path, policy="round_robin") as cluster, client(cluster) as http:
        ranks = [FakeRank(f"d{number}") for number in range(5)]
        await cluster.add(FakeWorker("p0"), *ranks)
        body = {"input_ids": [11], "sampling_params": {"max_new_tokens": 5}}
        asked = asyncio.create_task(http.post("/generate", json=body))
        for index in range(4):
            rank, start = await started(ranks)
            rank.send(tokens_of(start, [20 + index], first_index=index))
            rank.report(leaving=True)
            await cluster.until(partial(leaves, rank.worker_id))
            rank.send(ended(start, common_pb2.UNAVAILABLE, retryable=True))
        rank, start = await started(ranks)
        rank.send(tokens_of(start, [24], first_index=4, last=True))
        assert (await within(asked)).json()["output_ids"] == [20, 21, 22, 23, 24]


async def started(ranks: list[FakeRank]) -> tuple[FakeRank, StartRequest]:
    """Wait for the rank that is given a request next."""
    waiting = {asyncio.create_task(rank.starts.get()): rank for rank in ranks}
    done, others = await within(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))
    for task in others:
        task.cancel()
    (task,) = done
    return waiting[task], task.result()


async def test_a_pinned_request_waits_no_longer_once_its_lost_rank_is_retired(
    tmp_path: Path,
) -> None:
    async with (
        Cluster(tmp_path, worker_wait_s=600.0) as cluster,
        httpx.AsyncClient(base_url=cluster.http) as http,
    ):
        ranks = [FakeRank("d0"), FakeRank("d1")]
        await cluster.add(FakeWorker("p0"), *ranks)
        ranks[1].unregister()
        await cluster.until(lambda workers: "d1" not in workers)
        body = {"input_ids": [11], "routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 2}}
        asked = asyncio.create_task(http.post("/generate", json=body, timeout=20))
        await cluster.until_active(1)
        assert ranks[0].starts.empty(), "it waits for rank 1"
        cluster.server.retire([1])
        ranks[0].send(rest_of(await within(ranks[0].starts.get()), [20, 21]))
        assert (await within(asked)).json()["output_ids"] == [20, 21]


async def test_a_pinned_answer_goes_on_elsewhere_when_its_rank_does_not_come_back(
    tmp_path: Path,
) -> None:
    async with (
        Cluster(tmp_path, worker_wait_s=0.05) as cluster,
        client(cluster) as http,
    ):
        ranks = [FakeRank("d0"), FakeRank("d1")]
        await cluster.add(FakeWorker("p0"), *ranks)
        body = {"input_ids": [11], "routed_dp_rank": 1, "sampling_params": {"max_new_tokens": 2}}
        asked = asyncio.create_task(http.post("/generate", json=body))
        start = await within(ranks[1].starts.get())
        ranks[1].send(tokens_of(start, [20]))
        ranks[1].unregister()
        again = await within(ranks[0].starts.get())
        ranks[0].send(rest_of(again, [20, 21]))
        assert (await within(asked)).json()["output_ids"] == [20, 21]
        fresh = await http.post("/generate", json=body)
        assert fresh.status_code == 503 and fresh.headers["retry-after"]
        error = fresh.json()["error"]
        assert error["param"] == "routed_dp_rank"
        assert error["message"].startswith("decode rank 1 was lost and is not back after 0.05 s")
