"""Requests through a real router over gRPC, with ranks that the test plays."""

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

import grpc
import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, random_ids, replies_of

from baton.proto import common_pb2
from baton.proto.inference_pb2 import GenerateReply, GenerateRequest, TokenIds
from baton.proto.worker_pb2 import RequestTokens, StartRequest
from baton.rpc.errors import ERROR_METADATA


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def echo(start: StartRequest) -> Iterable[RequestTokens]:
    """Answers with the prompt, a token a step."""
    ids = list(start.prompt_ids)
    for i, token in enumerate(ids):
        yield tokens_of(start, [token], first_index=i, last=i == len(ids) - 1)


def joined(replies: list[GenerateReply]) -> list[int]:
    for reply in replies:
        assert reply.request_id == replies[0].request_id
    return [i for reply in replies for i in reply.token_ids]


async def failure(call: "grpc.aio.UnaryStreamCall[object, GenerateReply]") -> common_pb2.Error:
    """The `Error` that the call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await within(replies_of(call))
    return common_pb2.Error.FromString(dict(failed.value.trailing_metadata())[ERROR_METADATA])


async def retried(cluster: Cluster, prompt: list[int]) -> list[GenerateReply]:
    """Generate, and try again as long as the error is UNAVAILABLE, as a client does."""
    while True:
        try:
            return await replies_of(cluster.generate(prompt))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error


async def test_an_answer_comes_back_token_by_token_with_usage_and_timings(
    tmp_path: Path, rng: random.Random
) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.add(FakeWorker("p0"), FakeRank("d0", answer=echo))
        prompt = random_ids(rng, 9)
        replies = await within(replies_of(cluster.generate(prompt)))
        assert joined(replies) == prompt
        given = 0
        for reply in replies[:-1]:
            assert reply.first_index == given
            given += len(reply.token_ids)
        done = replies[-1].finished
        assert done.reason == common_pb2.LENGTH
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (9, 9)
        t = done.timings
        parts = (t.router_queue_us, t.prefill_queue_us, t.prefill_us, t.delivery_us, t.network_us)
        assert abs(sum(parts) - t.ttft_us) <= 3 and all(parts[1:4])
        assert (t.transfer_us, t.decode_wait_us, t.first_decode_step_us) == (3, 4, 5)
        assert t.e2e_us >= t.ttft_us > 0


async def test_the_rank_is_told_everything_it_needs(tmp_path: Path, rng: random.Random) -> None:
    async with Cluster(tmp_path) as cluster:
        prefill, rank = FakeWorker("p0", incarnation=5), FakeRank("d0", answer=echo)
        await cluster.add(prefill, rank)
        prompt = random_ids(rng, 4)
        await within(
            replies_of(cluster.generate(prompt, temperature=0.5, seed=77, max_tokens=5, stop=["x"]))
        )
        start = await within(rank.starts.get())
        assert list(start.prompt_ids) == prompt
        assert start.attempt == 1 and len(start.request_id) == 32
        assert list(start.prefills) == [prefill.identity]
        assert start.sampling.temperature == 0.5 and start.sampling.seed == 77
        assert start.sampling.max_tokens == 5 and list(start.sampling.stop) == ["x"]


async def test_a_pinned_request_reaches_its_rank_or_is_told_which_there_are(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        ranks = [FakeRank(f"d{i}", answer=echo) for i in range(3)]
        await cluster.add(FakeWorker("p0"), *ranks)

        def pinned(rank: int) -> "grpc.aio.UnaryStreamCall[GenerateRequest, GenerateReply]":
            ids = TokenIds(ids=[11, 12])
            request = GenerateRequest(token_ids=ids, stream=True, routed_dp_rank=rank)
            return cluster.inference.Generate(request, timeout=DEADLINE_S)

        for number in (2, 2, 0):
            assert joined(await within(replies_of(pinned(number)))) == [11, 12]
        assert [rank.starts.qsize() for rank in ranks] == [1, 0, 2]
        error = await failure(pinned(3))
        assert error.code == common_pb2.INVALID_REQUEST
        assert error.message == "routed_dp_rank is 3; the decode ranks are 0, 1, 2"


async def test_a_request_takes_its_priority_along(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path) as cluster,
        httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http,
    ):
        rank = FakeRank("d0", answer=echo)
        await cluster.add(FakeWorker("p0"), rank)
        message = GenerateRequest(token_ids=TokenIds(ids=[11]), priority=-7)
        await within(replies_of(cluster.inference.Generate(message, timeout=DEADLINE_S)))
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        for path, body in (
            ("/generate", {"input_ids": [11], "priority": 3}),
            ("/v1/completions", {"prompt": [11], "n": 2, "priority": 1000}),
            ("/v1/chat/completions", chat | {"priority": None}),
            ("/v1/completions", {"prompt": [11]}),
        ):
            assert (await http.post(path, json=body)).status_code == 200
        starts = [rank.starts.get_nowait() for _ in range(rank.starts.qsize())]
        assert [start.priority for start in starts] == [-7, 3, 1000, 1000, 0, 0]


async def test_a_priority_that_is_none_is_refused_by_every_protocol(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path) as cluster,
        httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http,
    ):
        message = GenerateRequest(token_ids=TokenIds(ids=[11]), priority=-1001)
        error = await failure(cluster.inference.Generate(message, timeout=DEADLINE_S))
        assert error.code == common_pb2.INVALID_REQUEST
        assert "priority is -1001; expected -1000 to 1000" in error.message
        for path, prompt, wrong in (
            ("/generate", "text", 10**20),
            ("/v1/completions", "prompt", "urgent"),
        ):
            body = {prompt: "a", "priority": wrong}
            reply = await http.post(path, json=body)
            assert reply.status_code == 400 and reply.json()["error"]["param"] == "priority"


async def test_requests_without_a_seed_get_one_each(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0", answer=echo)
        await cluster.add(FakeWorker("p0"), rank)
        for _ in range(3):
            await within(replies_of(cluster.generate([11])))
        starts = [await within(rank.starts.get()) for _ in range(3)]
        assert len({start.sampling.seed for start in starts}) == 3
        assert len({start.request_id for start in starts}) == 3


async def test_many_answers_share_the_rank_sessions_and_none_are_mixed_up(
    tmp_path: Path, rng: random.Random
) -> None:
    async with Cluster(tmp_path, max_queued=64, policy="round_robin", prefill_here=0) as cluster:
        ranks = [FakeRank(f"d{i}", answer=echo) for i in range(2)]
        for rank in ranks:  # a full one would be passed over
            rank.max_running = 40
        await cluster.add(FakeWorker("p0"), *ranks)
        prompts = [random_ids(rng, rng.randint(1, 20)) for _ in range(40)]
        calls = [replies_of(cluster.generate(prompt)) for prompt in prompts]
        answers = await within(asyncio.gather(*calls))
        assert [joined(replies) for replies in answers] == prompts
        assert [rank.starts.qsize() for rank in ranks] == [20, 20]
        assert all(rank.hellos.empty() for rank in ranks)  # one session each


async def test_a_token_reaches_the_client_before_the_next_one_exists(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        for i in range(3):
            rank.send(tokens_of(start, [20 + i], first_index=i, last=i == 2))
            assert list((await within(call.read())).token_ids) == [20 + i]


async def test_tokens_that_a_rank_sends_twice_are_given_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        stale = tokens_of(start, [99])
        stale.attempt = 0
        rank.send(stale)
        rank.send(tokens_of(start, [20, 21]))
        rank.send(tokens_of(start, [20, 21]))
        rank.send(tokens_of(start, [21, 22], first_index=1, last=True))
        assert joined(await within(replies_of(call))) == [20, 21, 22]


async def test_a_gap_in_the_tokens_fails_the_request_and_cancels_it_on_the_rank(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [21], first_index=1))
        assert (await failure(call)).code == common_pb2.DATA_LOSS
        assert (await within(rank.cancels.get())).request_id == start.request_id


async def test_a_client_that_cancels_reaches_the_rank(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [20]))
        await within(call.read())
        call.cancel()
        cancel = await within(rank.cancels.get())
        assert (cancel.request_id, cancel.attempt) == (start.request_id, start.attempt)
        await cluster.until(lambda workers: workers["d0"]["placed"] == 0)


async def test_a_request_past_its_grpc_deadline_is_cancelled_on_the_rank(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        for timeout in (0.3, 3.0, 15.0):
            call = cluster.generate([11], timeout=timeout)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await within(replies_of(call))
            assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not rank.starts.empty():
                break  # or it took all of its time to get there, on a slow machine
        start = await within(rank.starts.get())
        assert (await within(rank.cancels.get())).request_id == start.request_id


async def test_a_request_past_the_routers_own_limit_is_cancelled_on_the_rank(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, request_timeout_s=0.2) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        async with asyncio.timeout(DEADLINE_S):
            while rank.starts.empty():  # on a slow machine it may not get there in time
                error = await failure(cluster.generate([11]))
                assert error.code == common_pb2.DEADLINE_EXCEEDED and "0.2 s" in error.message
        assert (await within(rank.cancels.get())).reason == "deadline_exceeded"


async def test_a_finished_request_is_not_cancelled(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0", answer=echo)
        await cluster.add(FakeWorker("p0"), rank)
        for prompt in ([11], [11, 12]):
            await within(replies_of(cluster.generate(prompt)))
        # Messages keep their order: a cancel of the first would come before the second start.
        assert rank.starts.qsize() == 2 and rank.cancels.empty()


async def test_an_error_of_the_rank_reaches_the_client_as_it_is(tmp_path: Path) -> None:
    def refuse(start: StartRequest) -> Iterable[RequestTokens]:
        error = common_pb2.Error(
            code=common_pb2.TOO_LARGE, origin="d0", message="too long", expected="4", actual="5"
        )
        done = common_pb2.Finished(reason=common_pb2.ERROR, error=error)
        yield RequestTokens(request_id=start.request_id, attempt=start.attempt, finished=done)

    async with Cluster(tmp_path) as cluster:
        await cluster.add(FakeWorker("p0"), FakeRank("d0", answer=refuse))
        error = await failure(cluster.generate([11]))
        assert error.code == common_pb2.TOO_LARGE and not error.retryable
        assert (error.origin, error.message) == ("d0", "too long")
        assert (error.expected, error.actual) == ("4", "5")


async def test_a_rank_that_falls_silent_is_lost_and_used_again_when_it_speaks(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, lease_ms=400) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11])
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [20]))
        await within(call.read())
        rank.mute = True  # it goes on registering: only its session is silent
        error = await failure(call)
        assert error.code == common_pb2.UNAVAILABLE and error.retryable
        assert error.origin == "d0" and "silent for its lease of 0.4 s" in error.message
        rank.mute = False
        rank.answer = echo
        assert joined(await within(retried(cluster, [11, 12]))) == [11, 12]


async def test_a_rank_that_answers_as_another_start_is_not_used(tmp_path: Path) -> None:
    async with Cluster(tmp_path, worker_wait_s=0.3) as cluster:
        rank = FakeRank("d0", incarnation=1, answer=echo)
        await cluster.add(FakeWorker("p0"), rank)
        rank.incarnation = 2  # the process at that address was replaced
        rank.hang_up()
        await within(rank.hellos.get())  # the router has come back to it
        error = await failure(cluster.generate([11]))
        assert error.code == common_pb2.UNAVAILABLE and "no decode worker is ready" in error.message


@pytest.mark.parametrize(("there", "missing"), [("p0", "decode"), ("d0", "prefill")])
async def test_without_a_worker_of_a_role_the_client_is_told_which(
    tmp_path: Path, there: str, missing: str
) -> None:
    async with Cluster(tmp_path, worker_wait_s=0.1) as cluster:
        await cluster.add(FakeWorker(there) if there == "p0" else FakeRank(there))
        error = await failure(cluster.generate([11]))
        assert error.code == common_pb2.UNAVAILABLE and error.retryable
        assert f"no {missing} worker is ready" in error.message


async def test_a_request_waits_for_workers_that_are_still_starting(tmp_path: Path) -> None:
    async with Cluster(tmp_path, worker_wait_s=DEADLINE_S) as cluster:
        call = asyncio.create_task(replies_of(cluster.generate([11, 12])))
        await cluster.add(FakeRank("d0", answer=echo))
        await cluster.add(FakeWorker("p0"))
        assert joined(await within(call)) == [11, 12]


async def test_past_the_bound_requests_are_turned_away_until_one_ends(tmp_path: Path) -> None:
    async with Cluster(tmp_path, max_queued=1) as cluster:
        rank = FakeRank("d0")
        rank.max_running = 2
        await cluster.add(FakeWorker("p0"), rank)
        calls = [cluster.generate([11]) for _ in range(3)]
        starts = [await within(rank.starts.get()) for _ in calls]
        error = await failure(cluster.generate([11]))
        assert error.code == common_pb2.OVERLOADED and error.retryable
        assert (error.expected, error.actual) == ("fewer than 3", "3")
        for start in starts:
            rank.send(tokens_of(start, [20], last=True))
        for call in calls:
            assert joined(await within(replies_of(call))) == [20]
        rank.answer = echo
        assert joined(await within(replies_of(cluster.generate([12])))) == [12]


async def test_the_context_is_the_shortest_that_a_worker_allows(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        rank.max_model_len = 8
        await cluster.add(FakeWorker("p0"), rank)
        error = await failure(cluster.generate([11] * 6, max_tokens=3))
        assert error.code == common_pb2.INVALID_REQUEST and "context is 8" in error.message
