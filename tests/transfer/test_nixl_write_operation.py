"""A NIXL write tells its receiver when to look for bytes, and when not to."""

import asyncio

import pytest
from kit.polling import until

from baton.core.handoff_ids import TicketId
from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl import write_operation
from baton.transfer.channels.nixl.write_operation import NixlWriteOperation, Post
from baton.transfer.channels.writer_lease import WriterLease
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Kind, Segment
from baton.transfer.tickets import Claim, Received

DEADLINE_S = 60.0
HOLDER = StateRef(0, ())
CLAIM = Claim(TicketId(1, 2), 3, 4)


class Written:
    """A write operation, what it posts and what it tells."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.told: list[tuple[bool, int]] = []
        self.operation = NixlWriteOperation(
            self,
            CLAIM,
            HOLDER,
            lambda under_way, segments: self.told.append((under_way, segments)),
            WriterLease(DEADLINE_S),
            DEADLINE_S,
            lambda segment: segment.end - segment.start,
        )

    def post(self, post: Post) -> None:
        self.posts.append(post)

    def sever(self, why: ChannelError) -> None:
        pytest.fail(f"nothing is severed here: {why}")

    async def write(self, number: int) -> None:
        await self.operation.write(Segment(Kind.STATE, number, number + 1), HOLDER)

    def end(self, error: ChannelError | None = None) -> None:
        """End the first post under way."""
        self.operation.ended(self.posts.pop(0), error)

    async def until(self, told: list[tuple[bool, int]]) -> None:
        await until(lambda: self.told == told, lambda: self.told)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setattr(write_operation, "REST_S", 2 * DEADLINE_S)  # no test reaches it by chance
    return Written()


async def test_posts_that_follow_each_other_are_told_once_and_the_end_once(
    written: Written,
) -> None:
    for number in range(3):
        await written.write(number)
        written.end()
    assert written.told == [(True, 0)]
    assert await written.operation.finish() == Received(3, 3, 0)
    assert written.told == [(True, 0), (False, 3)]


async def test_a_rest_is_told_and_so_is_the_post_after_it(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_operation, "REST_S", 0.001)
    await written.write(0)
    written.end()
    await written.until([(True, 0), (False, 1)])
    await written.write(1)
    assert written.told[2:] == [(True, 1)]


async def test_a_rest_that_ends_in_time_is_not_told(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_operation, "REST_S", 0.0)  # told in the loop's next turns
    await written.write(0)
    written.end()
    await written.write(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert written.told == [(True, 0)]


@pytest.mark.parametrize("ended_first", [True, False])
async def test_a_cancelled_write_is_told_to_rest_once_nothing_is_under_way(
    written: Written, ended_first: bool
) -> None:
    await written.write(0)
    if ended_first:
        written.end()
    written.operation.cancel()
    assert written.told == ([(True, 0), (False, 1)] if ended_first else [(True, 0)])
    if not ended_first:
        written.end()
    assert written.told == [(True, 0), (False, 1)]


async def test_a_write_that_failed_is_told_to_rest_at_once(written: Written) -> None:
    await written.write(0)
    written.end(ChannelError("lost"))
    assert written.told == [(True, 0), (False, 1)]
    with pytest.raises(ChannelError, match="lost"):
        await written.operation.finish()
