"""When a router takes a rank for lost, by a clock that the test turns."""

from collections.abc import Iterator

import pytest

from baton.proto.common_pb2 import WorkerIdentity
from baton.router.errors import RankLost
from baton.router.rank_session import BEATS_PER_LEASE, RankSession, SessionOptions
from baton.router.worker_table import Role, Worker

LEASE_S = 0.04
BEAT_S = LEASE_S / BEATS_PER_LEASE


def naps(late_s: list[float]) -> Iterator[float]:
    """The clock before and after each nap of a beat, from which the process woke so much late."""
    now = 100.0
    for late in late_s:
        yield now
        now += BEAT_S + late
        yield now


async def naps_until_lost(*late_s: float) -> int:
    """After how many of these a rank that says nothing is taken for lost."""
    readings = list(naps([*late_s, *[0.0] * 10]))
    left = iter(readings)
    worker = Worker(WorkerIdentity(worker_id="d0"), Role.DECODE, {}, 1)
    session = RankSession(
        worker, SessionOptions("r", LEASE_S, lambda: next(left)), list, lambda: None
    )
    session._heard = readings[0]
    with pytest.raises(RankLost, match="silent for its lease"):
        await session._keep_lease()
    return (len(readings) - len(list(left))) // 2


async def test_a_rank_that_says_nothing_for_a_lease_is_lost() -> None:
    assert await naps_until_lost() == BEATS_PER_LEASE


@pytest.mark.parametrize("late", [0.5, 0.95, 1.5, 100.0])
async def test_while_the_router_is_held_up_itself_no_rank_is_silent(late: float) -> None:
    """However short it is: what the rank said meanwhile may lie unread."""
    assert await naps_until_lost(0.0, late * LEASE_S) == BEATS_PER_LEASE
    assert await naps_until_lost(*[late * LEASE_S] * 2) == BEATS_PER_LEASE
