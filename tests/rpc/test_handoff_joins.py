"""Messages of hand-offs that wait together: few messages, with all of them in order."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from baton.proto.common_pb2 import Heartbeat
from baton.proto.handoff_pb2 import (
    DecodeMessage,
    Destination,
    Done,
    PrefillMessage,
    PrefillRequest,
)
from baton.rpc.handoff_joins import MOST_BYTES, M, join_to_prefill, join_to_rank, parts_of

Message = DecodeMessage | PrefillMessage


def to_prefill(rng: random.Random, number: int) -> DecodeMessage:
    if rng.random() < 0.2:
        return DecodeMessage(heartbeat=Heartbeat(sequence=number))
    if rng.random() < 0.5:
        return DecodeMessage(destination=Destination(request_id=str(number), pages=range(9)))
    tokens = rng.choice([3, 3, MOST_BYTES // 5, MOST_BYTES])
    return DecodeMessage(request=PrefillRequest(request_id=str(number), prompt_ids=[99] * tokens))


def to_rank(rng: random.Random, number: int) -> PrefillMessage:
    name = "x" * rng.choice([3, 3, MOST_BYTES // 3, MOST_BYTES * 2])
    return PrefillMessage(done=Done(request_id=name, attempt=number))


@pytest.mark.parametrize(
    ("join", "made"),
    [(join_to_prefill, to_prefill), (join_to_rank, to_rank)],
    ids=["to prefill", "to rank"],
)
def test_all_come_in_order_in_messages_that_are_as_few_and_short_as_allowed(
    join: Callable[[Sequence[M]], Iterator[M]], made: Callable[[random.Random, int], M]
) -> None:
    rng = random.Random(7)
    for length in (1, 2, 3, 40):
        messages = [made(rng, number) for number in range(length)]
        sent = list(join(messages))
        assert [part for each in sent for part in parts_of(each)] == messages
        sizes = [sum(part.ByteSize() for part in parts_of(each)) for each in sent]
        for each, size in zip(sent, sizes, strict=True):
            assert size <= MOST_BYTES or len(parts_of(each)) == 1
            assert each.HasField("several") == (len(parts_of(each)) > 1)
        firsts = [parts_of(each)[0].ByteSize() for each in sent[1:]]
        assert all(
            size + first > MOST_BYTES for size, first in zip(sizes[:-1], firsts, strict=True)
        ), "two neighbours would have fitted into one"
