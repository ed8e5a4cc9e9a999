"""A worker whose engine has ended leaves its routers before it fails its requests."""

import asyncio
from collections.abc import Callable

import pytest
from engine.engines import greedy
from worker.cluster import DEADLINE_S, TestWorker, decode_worker, prefill_worker, running, session
from worker.fake_router import FakeRouter, serving
from worker.test_registration import told

from baton.core.errors import InvariantError
from baton.proto import common_pb2


def end_engine(worker: TestWorker) -> "asyncio.Task[None]":
    """Have the engine's loop end as it does for a lost rank."""

    def lost(_: object) -> None:
        raise InvariantError("a rank is lost")

    return asyncio.create_task(worker.context.port.call(lost))


@pytest.mark.parametrize("make", [prefill_worker, decode_worker], ids=["prefill", "decode"])
async def test_no_request_fails_while_a_router_still_has_the_worker(
    make: Callable[[], TestWorker],
) -> None:
    router, seen = FakeRouter(), []
    async with serving(router) as address:
        prefill, decode = prefill_worker(), decode_worker()
        worker = prefill if make is prefill_worker else decode
        told(worker, address)
        async with running(prefill, decode), session(decode) as client:
            await router.until(lambda r: r.streams and r.streams[0])
            before = [await client.start((1, 2, 3), greedy(4), [prefill]) for _ in range(4)]
            broken = end_engine(worker)
            after = [await client.start((4, 5, 6), greedy(4), [prefill]) for _ in range(4)]
            for _, answer in (*before, *after):
                finished = await asyncio.wait_for(answer.end(), DEADLINE_S)
                if finished.reason == common_pb2.ERROR:
                    assert finished.error.code == common_pb2.UNAVAILABLE
                    assert "a rank is lost" in finished.error.message
                    seen.append(router.ended)
            with pytest.raises(InvariantError):
                await broken
            assert len(seen) >= 4 and set(seen) == {1}
            assert len(router.streams) == 1  # it does not come back
