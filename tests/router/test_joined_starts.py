"""Requests to one rank that are placed at the same time: one message has them all."""

import gc
import random
from pathlib import Path

import pytest
from fake_workers import FakeRank, FakeWorker, within
from router_neighbours import Cluster

from baton.proto.common_pb2 import Heartbeat
from baton.proto.version import PROTOCOL_MINOR
from baton.proto.worker_pb2 import CancelRequest, RouterMessage, StartRequest
from baton.router.sessions.joined_starts import MOST_TOKENS, join_starts
from baton.router.sessions.rank_session import RankSession


def tokens_of(start: StartRequest) -> int:
    return len(start.prompt_ids) + len(start.output_ids)


def some_message(rng: random.Random, number: int) -> RouterMessage:
    if rng.random() < 0.1:
        return RouterMessage(heartbeat=Heartbeat(sequence=number))
    if rng.random() < 0.1:
        return RouterMessage(cancel=CancelRequest(request_id=str(number)))
    most = rng.choice([3, MOST_TOKENS // 3, MOST_TOKENS * 2])
    prompt, output = rng.randint(1, most), rng.randint(0, most // 3)
    start = StartRequest(request_id=str(number), prompt_ids=[7] * prompt, output_ids=[8] * output)
    return RouterMessage(start=start)


def alone(message: RouterMessage) -> list[RouterMessage]:
    if message.HasField("starts"):
        return [RouterMessage(start=each) for each in message.starts.requests]
    return [message]


def test_nothing_is_lost_or_passed_and_messages_are_as_few_and_short_as_allowed() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for count in range(30):
        messages = [some_message(rng, number) for number in range(count)]
        joined = list(join_starts(messages))
        assert [each for message in joined for each in alone(message)] == messages
        sizes: list[int | None] = []  # tokens of each message's requests; None: it has none
        for message in joined:
            starts = [each.start for each in alone(message) if each.HasField("start")]
            tokens = sum(map(tokens_of, starts))
            sizes.append(tokens if starts else None)
            assert len(starts) <= 1 or tokens <= MOST_TOKENS
            assert not message.HasField("starts") or len(starts) > 1
        for before, message, size in zip(sizes, joined[1:], sizes[1:], strict=False):
            if before is not None and size is not None:
                assert before + tokens_of(alone(message)[0].start) > MOST_TOKENS


@pytest.mark.parametrize("minor", [PROTOCOL_MINOR, 1])
async def test_a_rank_gets_requests_of_one_turn_in_one_message_if_it_can_read_that(
    minor: int, tmp_path: Path
) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        rank.protocol_minor = minor
        await cluster.add(FakeWorker("p0"), rank)
        (session,) = (each for each in gc.get_objects() if type(each) is RankSession and each.ready)
        names = [f"{number:032x}" for number in range(5)]
        for name in names:
            start = StartRequest(request_id=name, attempt=1, prompt_ids=[3])
            session.start(RouterMessage(start=start))
        assert [(await within(rank.starts.get())).request_id for _ in names] == names
        assert rank.sent_together == ([5] if minor > 1 else [1] * 5)
