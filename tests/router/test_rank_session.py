"""The end of a session with a rank."""

import asyncio
import contextlib
import time

import pytest
from certificates import router

from baton.core.errors import PeerLostError
from baton.proto.common_pb2 import DECODE, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.sessions.rank_session import RankSession, SessionOptions

DEADLINE_S = 30.0


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
    identity = WorkerIdentity(worker_id="d0", incarnation=1, role=DECODE, address="a:1")
    hello = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
    worker = WorkerTable(1.0, time.monotonic).register(hello)
    options = SessionOptions("r0", 1.0, time.monotonic, router())
    running = asyncio.create_task(RankSession(worker, options, list, lambda: None).run())
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()
