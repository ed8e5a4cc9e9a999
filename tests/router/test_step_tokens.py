"""Tokens that a rank sends in columns: each reaches its request's client once, and in order."""

import gc
import random
from pathlib import Path

import grpc
import pytest
from fake_workers import FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, random_ids, replies_of

from baton.proto.inference_pb2 import GenerateReply
from baton.proto.worker_pb2 import RankMessage, StartRequest, StepTokens
from baton.router.sessions.rank_session import RankSession


def ids_of(replies: list[GenerateReply]) -> list[int]:
    """Fails where an index is missing or comes twice."""
    ids: list[int] = []
    for reply in replies:
        assert not reply.token_ids or reply.first_index == len(ids)
        ids += reply.token_ids
    return ids


def columns(*tokens: tuple[StartRequest, int, int]) -> StepTokens:
    """Each token: its request, its output index, its id."""
    step = StepTokens()
    for start, index, token_id in tokens:
        step.handles.append(start.handle)
        step.indices.append(index)
        step.token_ids.append(token_id)
    return step


async def test_tokens_of_a_step_reach_their_own_requests_before_the_ends_in_the_same_message(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        calls, starts, answers = [], [], []
        for _ in range(3):
            calls.append(cluster.generate([11], max_tokens=5))
            starts.append(await within(rank.starts.get()))
            answers.append(random_ids(rng, 5))
        each = list(zip(starts, answers, strict=True))
        assert len({start.handle for start in starts}) == 3 and all(s.handle for s in starts)
        # First tokens stand among the requests, and come before those of the steps.
        first_steps = [(start, index, ids[index]) for index in (1, 2) for start, ids in each]
        rank.send_message(
            RankMessage(
                requests=[tokens_of(start, ids[:1]) for start, ids in each],
                step=columns(*first_steps),
            )
        )
        rng.shuffle(each)
        last_steps = [(start, index, ids[index]) for index in (3, 4) for start, ids in each]
        unknown = columns((StartRequest(handle=max(s.handle for s in starts) + 1), 0, 66))
        rank.send_message(RankMessage(step=unknown))
        rank.send_message(
            RankMessage(
                requests=[tokens_of(s, [], first_index=5, last=True) for s in starts],
                step=columns(first_steps[-1], *last_steps),  # one is sent again
            )
        )
        for call, ids in zip(calls, answers, strict=True):
            assert ids_of(await within(replies_of(call))) == ids
        await cluster.until_active(0)
        sessions = [each for each in gc.get_objects() if type(each) is RankSession]
        assert sessions and not any(each._by_handle for each in sessions), (
            "ended ones are forgotten"
        )


async def test_a_gap_in_a_requests_tokens_ends_it_alone(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        calls, starts = [], []
        for _ in range(2):
            calls.append(cluster.generate([11], max_tokens=2))
            starts.append(await within(rank.starts.get()))
        rank.send(*(tokens_of(start, [20]) for start in starts))
        rank.send_message(RankMessage(step=columns((starts[0], 2, 99), (starts[1], 1, 21))))
        rank.send(tokens_of(starts[1], [], first_index=2, last=True))
        with pytest.raises(grpc.aio.AioRpcError, match="missing"):
            await within(replies_of(calls[0]))
        assert ids_of(await within(replies_of(calls[1]))) == [20, 21]


async def test_what_an_earlier_attempt_still_sends_is_dropped(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first)
        call = cluster.generate([11], max_tokens=3)
        start = await within(first.starts.get())
        first.send(tokens_of(start, [20]))
        replies = [await within(call.read())]
        await cluster.add(second)
        first.hang_up()
        again = await within(second.starts.get())
        await cluster.until(lambda workers: bool(workers["d0"]["ready"]))
        first.send_message(RankMessage(step=columns((start, 1, 66))))
        second.send_message(RankMessage(step=columns((again, 1, 21), (again, 2, 22))))
        second.send(tokens_of(again, [], first_index=3, last=True))
        replies += await within(replies_of(call))
        assert ids_of(replies) == [20, 21, 22]


async def test_a_step_whose_columns_differ_in_length_ends_the_session_and_not_the_request(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11], max_tokens=2)
        start = await within(rank.starts.get())
        rank.send(tokens_of(start, [20]))
        short = StepTokens(handles=[start.handle], indices=[1])
        rank.send_message(RankMessage(step=short))
        again = await within(rank.starts.get())
        assert (again.attempt, list(again.output_ids)) == (2, [20])
        rank.send(tokens_of(again, [21], first_index=1, last=True))
        assert ids_of(await within(replies_of(call))) == [20, 21]
