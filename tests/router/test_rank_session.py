"""The steps and the end of a session with a rank."""

import asyncio
import contextlib
import itertools
import time

import pytest
from certificates import router

from baton.api.admission.step_times import DecodeStepTimes
from baton.core.errors import PeerLostError
from baton.proto.common_pb2 import DECODE, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import RouterMessage, StartRequest, StepTokens
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.sessions.rank_session import RankSession, SessionOptions

DEADLINE_S = 30.0


class SeenSteps(DecodeStepTimes):
    """The steps that a session has measured."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def add(self, rows: int, seconds: float) -> None:
        self.rows.append(rows)


def session_of(seen: DecodeStepTimes) -> RankSession:
    identity = WorkerIdentity(worker_id="d0", incarnation=1, role=DECODE, address="a:1")
    hello = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
    worker = WorkerTable(1.0, time.monotonic).register(hello)
    options = SessionOptions("r0", 1.0, time.monotonic, router(), seen)
    return RankSession(worker, options, list, lambda: None)


@pytest.mark.parametrize("ends", ["first token", "left"])
async def test_steps_beside_a_prompt_are_not_measured(ends: str) -> None:
    """They would count against the keys of the requests in them."""
    seen = SeenSteps()
    session = session_of(seen)
    session.ready = True
    writing = session.start(RouterMessage(start=StartRequest(request_id="a", attempt=1)))
    tokens = itertools.count()

    def step(*more: tuple[int, int]) -> None:
        columns = ((writing.handle, next(tokens)), *more)
        session._feed_step(StepTokens(
            handles=[handle for handle, _ in columns],
            indices=[index for _, index in columns],
            token_ids=[7] * len(columns),
        ), 0)  # fmt: skip

    for _ in range(3):
        step()
    assert seen.rows == [1, 1]
    computed = session.start(
        RouterMessage(start=StartRequest(request_id="b", attempt=1, prefill_here=True))
    )
    for _ in range(3):
        step()
    assert seen.rows == [1, 1]
    if ends == "first token":
        step((computed.handle, 0))  # the last part of the prompt was in it
    else:
        session.end(computed, "its client left")
    step()
    assert seen.rows == [1, 1]
    step()
    assert seen.rows == [1, 1, 1]


async def test_a_session_ends_while_its_call_begins_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """grpc.aio raises the status of the call then, not the cancellation."""
    begun = asyncio.Event()

    async def connect(self: RankSession) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise PeerLostError("its stream broke: UNAVAILABLE")

    monkeypatch.setattr(RankSession, "_connect", connect)
    running = asyncio.create_task(session_of(DecodeStepTimes()).run())
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()
