"""Emptying all caches, over real gRPC."""

import pytest
from certificates import router
from fake_workers import DEADLINE_S, FakeRank, FakeWorker

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.proto.common_pb2 import UNAVAILABLE, Error
from baton.router.cache_flush import flush_all
from baton.router.cluster_view.worker_table import WorkerTable


async def test_every_worker_is_flushed_and_a_failure_does_not_spare_the_others() -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    async with FakeRank("d0") as busy, FakeRank("d1") as rank, FakeWorker("p0") as prefill:
        for worker in (rank, prefill):
            table.register(worker.hello)
        await flush_all(table.workers(), DEADLINE_S, b"", router())
        busy.flush_error = Error(code=UNAVAILABLE, origin="d0", message="busy")
        table.register(busy.hello)
        with pytest.raises(ApiError, match="busy"):
            await flush_all(table.workers(), DEADLINE_S, b"", router())
        assert len(rank.flushes) == len(prefill.flushes) == 2


async def test_both_rounds_of_a_part_share_the_time() -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    async with FakeWorker("p0") as prefill:
        table.register(prefill.hello)
        prefill.flush_takes_s = 0.05
        await flush_all(table.workers(), DEADLINE_S, b"salt", router())
        first, second = prefill.flushes
        assert second <= first - 50 and prefill.flushed_salts == [b"salt"] * 2


async def test_a_worker_that_is_not_there_is_named() -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    async with FakeWorker("p0") as gone:
        table.register(gone.hello)
    with pytest.raises(ApiError, match="p0 did not flush") as failed:
        await flush_all(table.workers(), 1.0, b"", router())
    assert failed.value.code in (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED)
