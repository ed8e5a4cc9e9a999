"""Profiles of a worker's engine, through the RPCs that the router calls."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import operator
from engine.engines import greedy
from kit.polling import until
from worker.cluster import (
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)

from baton.core.errors import RequestError
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.worker import profiler as module
from baton.worker.engine_profile import MAX_SECONDS, MAX_STEPS, ProfileLimits

LONG = worker_pb2.StartProfileRequest(steps=MAX_STEPS, timeout_ms=60_000)


@dataclass
class Profiled:
    """A decode worker, the stub of its operator, and a session of a router."""

    stub: worker_pb2_grpc.WorkerStub
    client: RouterClient
    prefill: TestWorker

    async def start(self, request: worker_pb2.StartProfileRequest = LONG) -> Any:
        return await self.stub.StartProfile(request)

    async def stop(self) -> Any:
        return await self.stub.StopProfile(worker_pb2.StopProfileRequest())

    async def decode(self, tokens: int) -> None:
        _, answer = await self.client.start((5, 6, 7), greedy(tokens), [self.prefill])
        await answer.end()


@asynccontextmanager
async def profiled(folder: Path | None) -> AsyncIterator[Profiled]:
    prefill, decode = prefill_worker(), decode_worker(worker={"profile_folder": folder})
    async with (
        running(prefill, decode),
        session(decode) as client,
        operator().dial_worker(decode.identity, OPTIONS) as channel,
    ):
        yield Profiled(worker_pb2_grpc.WorkerStub(channel), client, prefill)


def spans(file: str) -> list[str]:
    """Return the names of the engine's steps in a trace."""
    events = json.loads(gzip.decompress(Path(file).read_bytes()))["traceEvents"]
    names = [e["name"] for e in events if e.get("name", "").startswith("engine step")]
    return sorted(set(names))


async def test_a_profile_is_one_at_a_time_and_lies_where_the_reply_says(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    async with profiled(folder) as worker:
        early = await worker.stop()
        assert early.error.code == common_pb2.CONFLICT
        assert not (await worker.start()).HasField("error")
        second = await worker.start()
        assert second.error.code == common_pb2.CONFLICT
        assert "runs already" in second.error.message
        await worker.decode(6)
        made = await worker.stop()
        assert not made.HasField("error"), made.error
        file = Path(made.file)
        assert file.parent == folder and list(folder.iterdir()) == [file]
        assert file.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
        assert file.stat().st_size == made.bytes
        assert made.steps >= 5 and len(spans(made.file)) >= made.steps
        assert (await worker.stop()).error.code == common_pb2.CONFLICT, "it was stopped before"
        assert not (await worker.start()).HasField("error")


async def test_a_profile_ends_by_itself_after_its_steps_or_its_time(tmp_path: Path) -> None:
    async with profiled(tmp_path) as worker:
        await worker.start(worker_pb2.StartProfileRequest(steps=2, timeout_ms=60_000))
        await worker.decode(9)
        made = await worker.stop()
        assert made.steps == 2
        await worker.start(worker_pb2.StartProfileRequest(steps=MAX_STEPS, timeout_ms=1))
        await until(lambda: len(list(tmp_path.iterdir())) >= 2)
        made = await worker.stop()
        assert not made.HasField("error") and made.steps == 0
        await worker.decode(3)


async def test_old_traces_make_room_and_too_large_ones_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    async with profiled(tmp_path) as worker:
        files = []
        for _ in range(3):
            await worker.start()
            files.append(Path((await worker.stop()).file))
        assert sorted(tmp_path.iterdir()) == files[1:]
        monkeypatch.setattr(module, "MAX_BYTES", 10)
        await worker.start()
        assert (await worker.stop()).error.code == common_pb2.TOO_LARGE
        assert files[1] not in tmp_path.iterdir() and len(list(tmp_path.iterdir())) == 1


async def test_what_cannot_be_profiled_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with profiled(None) as worker:
        refused = await worker.start()
        assert "--profile-folder" in refused.error.message
    (tmp_path / "file").touch()
    async with profiled(tmp_path / "file" / "folder") as worker:
        refused = await worker.start()
        assert refused.error.code == common_pb2.INTERNAL and "cannot make" in refused.error.message
        refused = await worker.start(worker_pb2.StartProfileRequest(steps=0, timeout_ms=1))
        assert refused.error.code == common_pb2.INVALID_REQUEST


@pytest.mark.parametrize(
    ("steps", "seconds", "field"),
    [(0, 1.0, "num_steps"), (MAX_STEPS + 1, 1.0, "num_steps"), (1, 0.0, "timeout_s"),
     (1, MAX_SECONDS + 1, "timeout_s")],
)  # fmt: skip
def test_limits_have_limits(steps: int, seconds: float, field: str) -> None:
    with pytest.raises(RequestError) as raised:
        ProfileLimits(steps, seconds)
    assert raised.value.field == field
