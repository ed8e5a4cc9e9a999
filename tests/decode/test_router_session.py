"""Tests of the messages that one router gets about its requests, and of their number."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from baton.decode import router_session
from baton.decode.router_session import RouterSession
from baton.proto import worker_pb2
from baton.proto.common_pb2 import Heartbeat

DEADLINE_S = 60.0


class Wire:
    """A router whose reading the test allows, message by message; it stands for the call too."""

    def __init__(self) -> None:
        self.written: list[worker_pb2.RankMessage] = []
        self.to_rank: asyncio.Queue[worker_pb2.RouterMessage | None] = asyncio.Queue()
        self._reads = asyncio.Semaphore(0)
        self._writes = asyncio.Semaphore(0)

    async def write(self, message: worker_pb2.RankMessage) -> None:
        """Record a message, and wait for its reader as gRPC's own `write` does."""
        self.written.append(message)
        self._writes.release()
        await self._reads.acquire()

    async def begun(self) -> worker_pb2.RankMessage:
        """The next message that the rank begins to write."""
        async with asyncio.timeout(DEADLINE_S):
            await self._writes.acquire()
        return self.written[-1]

    def read(self) -> None:
        self._reads.release()

    async def messages(self) -> AsyncIterator[worker_pb2.RouterMessage]:
        while (message := await self.to_rank.get()) is not None:
            yield message


def never(start: worker_pb2.StartRequest, session: RouterSession) -> object:
    raise AssertionError("no request was started")


class Begun:
    """A request that does nothing."""

    def __init__(self, start: worker_pb2.StartRequest) -> None:
        self.request_id, self.attempt = start.request_id, start.attempt

    def begin(self) -> None: ...

    def cancel(self, reason: str) -> None: ...


def step(session: RouterSession, names: list[str], index: int) -> None:
    """Add one step's output to the session: a token of each request."""
    for name in names:
        tokens = session.add()
        tokens.request_id, tokens.first_index = name, index
        tokens.token_ids.append(index + 7)


@pytest.fixture
def names() -> list[str]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [f"{rng.getrandbits(128):032x}" for _ in range(rng.randint(2, 9))]


async def test_a_steps_tokens_are_one_message_and_a_slow_router_gets_several_steps_in_one(
    names: list[str],
) -> None:
    wire = Wire()
    session = RouterSession("r", 600.0, never, print)  # type: ignore[arg-type]
    serving = asyncio.ensure_future(session.serve(wire.messages(), wire))  # type: ignore[arg-type]
    step(session, names, 0)
    first = await wire.begun()
    assert [tokens.request_id for tokens in first.requests] == names
    for index in (1, 2, 3):  # while the router does not read
        step(session, names, index)
    wire.to_rank.put_nowait(worker_pb2.RouterMessage(heartbeat=Heartbeat(sequence=5)))
    wire.read()
    second = await wire.begun()
    found = [(t.request_id, t.first_index, list(t.token_ids)) for t in second.requests]
    assert found == [(name, i, [i + 7]) for i in (1, 2, 3) for name in names]
    wire.read()
    if not second.HasField("heartbeat"):
        second = await wire.begun()
    assert second.heartbeat.sequence == 5
    wire.to_rank.put_nowait(None)
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_requests_of_one_message_begin_in_their_order(names: list[str]) -> None:
    begun: list[str] = []

    def begin(start: worker_pb2.StartRequest, session: RouterSession) -> Begun:
        begun.append(start.request_id)
        return Begun(start)

    wire = Wire()
    session = RouterSession("r", 600.0, begin, print)  # type: ignore[arg-type]
    requests = [worker_pb2.StartRequest(request_id=name, attempt=1) for name in names]
    alone, *together = requests
    wire.to_rank.put_nowait(worker_pb2.RouterMessage(start=alone))
    both = worker_pb2.StartRequests(requests=[*together, alone])  # one is sent again
    wire.to_rank.put_nowait(worker_pb2.RouterMessage(starts=both))
    wire.to_rank.put_nowait(None)
    serving = session.serve(wire.messages(), wire)  # type: ignore[arg-type]
    await asyncio.wait_for(serving, DEADLINE_S)
    assert begun == names


async def test_plain_tokens_are_columns_in_the_order_in_which_they_came(names: list[str]) -> None:
    wire = Wire()
    session = RouterSession("r", 600.0, never, print)  # type: ignore[arg-type]
    serving = asyncio.ensure_future(session.serve(wire.messages(), wire))  # type: ignore[arg-type]
    handles = range(3, 3 + len(names))
    for handle in handles:
        session.add_token(handle, 5, handle + 90)
    first = (await wire.begun()).step
    assert list(first.handles) == list(handles)
    assert list(first.indices) == [5] * len(names)
    assert list(first.token_ids) == [handle + 90 for handle in handles]
    for index in (6, 7):  # while the router does not read
        for handle in handles:
            session.add_token(handle, index, handle + index)
    session.add().request_id = names[0]
    wire.read()
    both = await wire.begun()
    assert list(both.step.handles) == 2 * list(handles)
    assert list(both.step.indices) == [6] * len(names) + [7] * len(names)
    assert list(both.step.token_ids) == [h + index for index in (6, 7) for h in handles]
    assert [tokens.request_id for tokens in both.requests] == names[:1]
    wire.read()
    session.add().request_id = names[1]
    assert not (await wire.begun()).HasField("step"), "tokens are sent once"
    wire.to_rank.put_nowait(None)
    wire.read()
    await asyncio.wait_for(serving, DEADLINE_S)
    session.add_token(3, 8, 1)
    await asyncio.sleep(0)
    assert len(wire.written) == 3


async def test_steps_that_follow_closely_share_a_message(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_session, "LEAST_GAP_S", 3600.0)
    waits: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.put_nowait(seconds)
        await go_on.wait()

    wire = Wire()
    session = RouterSession("r", 600.0, never, print, sleep)  # type: ignore[arg-type]
    serving = asyncio.ensure_future(session.serve(wire.messages(), wire))  # type: ignore[arg-type]
    step(session, names, 0)
    assert len((await wire.begun()).requests) == len(names)
    assert waits.empty(), "the first message waits for nothing"
    wire.read()
    step(session, names, 1)
    assert 0 < await asyncio.wait_for(waits.get(), DEADLINE_S) <= 3600
    step(session, names, 2)
    go_on.set()
    both = await wire.begun()
    assert [tokens.first_index for tokens in both.requests] == [1] * len(names) + [2] * len(names)
    wire.read()
    wire.to_rank.put_nowait(None)
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_what_is_added_when_the_router_has_gone_goes_nowhere(names: list[str]) -> None:
    wire = Wire()
    session = RouterSession("r", 600.0, never, print)  # type: ignore[arg-type]
    wire.to_rank.put_nowait(None)
    await asyncio.wait_for(session.serve(wire.messages(), wire), DEADLINE_S)  # type: ignore[arg-type]
    step(session, names, 0)
    await asyncio.sleep(0)
    assert not wire.written


async def test_a_closed_session_ends_once_the_router_has_read_what_was_added(
    names: list[str],
) -> None:
    wire = Wire()
    session = RouterSession("r", 600.0, never, print)  # type: ignore[arg-type]
    serving = asyncio.ensure_future(session.serve(wire.messages(), wire))  # type: ignore[arg-type]
    step(session, names, 0)
    assert not (await wire.begun()).closing
    step(session, names, 1)  # while the router does not read
    closing = asyncio.ensure_future(session.close())
    wire.read()
    last = await wire.begun()
    assert [(t.request_id, t.first_index) for t in last.requests] == [(name, 1) for name in names]
    assert last.closing
    wire.read()
    assert not closing.done()
    wire.to_rank.put_nowait(None)  # the router has read it
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(closing, serving)
