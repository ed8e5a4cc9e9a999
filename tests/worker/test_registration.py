"""A worker makes itself known to every router, and finds it again whenever it comes back."""

import asyncio
import contextlib
import threading
from array import array
from collections.abc import Sized

import pytest
from certificates import CLUSTER, folder_of
from engine.engines import greedy
from kit.polling import until
from worker.cluster import DEADLINE_S, TestWorker, decode_worker, prefill_worker, running, session
from worker.fake_router import FakeRouter, serving

from baton.core.errors import PeerLostError
from baton.core.role import Role
from baton.proto import common_pb2, worker_pb2
from baton.rpc.identity import ProcessRole
from baton.text.prefix_digest import PrefixDigest
from baton.worker.registration import Registration
from baton.worker.router_shares import RouterShares


def told(worker: TestWorker, *routers: str) -> TestWorker:
    """`worker`, with these routers to register with."""
    config = worker.runtime._config
    object.__setattr__(config, "routers", routers)
    return worker


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers report often: tests wait for several reports, whose period is else a second."""
    monkeypatch.setattr("baton.worker.reporter.LONGEST_PERIOD_S", 0.1)


@pytest.mark.usefixtures("often")
async def test_the_first_report_says_who_and_what_the_worker_is() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        worker = told(decode_worker("d3"), address)
        async with running(worker):
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)
            first, second = router.streams[0][:2]
    assert first.hello == worker.context.hello
    assert first.hello.worker.address == worker.started.address
    assert first.hello.worker.role == common_pb2.DECODE
    assert first.hello.fingerprint["page_size"] == "8"
    assert not second.HasField("hello")
    assert first.status.worker.incarnation == worker.started.incarnation
    assert {o.owner for o in first.status.slots} >= {"free", "live", "ticket"}
    assert first.status.max_running == 4


def details_of(status: worker_pb2.WorkerStatus) -> list[int]:
    details: list[Sized] = [status.memory_plan, status.peers, status.channels, status.settings]
    return [len(each) for each in details]


async def test_a_router_that_keeps_details_is_told_them_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peers of a rank are known at its first hand-off, and its channel to them later."""
    monkeypatch.setattr("baton.worker.reporter.LONGEST_PERIOD_S", 0.2)
    router = FakeRouter()
    router.keeps_details = True
    async with serving(router) as address:
        prefill, decode = prefill_worker(), told(decode_worker(), address)
        async with running(prefill, decode), session(decode) as client:
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 3)
            first, *others = router.streams[0]
            _, answer = await client.start((1, 2, 3), greedy(4), [prefill])
            await answer.end()
            await router.until(lambda r: any(each.status.channels for each in r.streams[0]))
            number = len(router.streams[0])
            await router.until(lambda r: len(r.streams[0]) > number + 2)
            reports = [*router.streams[0]]  # the peer leaves next, which is news
    plan, peers, channels, settings = details_of(first.status)
    assert plan and settings and not peers and not channels
    for report in others:
        assert report.same_details and details_of(report.status) == [0, 0, 0, 0]
        assert report.status.max_running == 4
    news = [each for each in reports if not each.same_details]
    assert details_of(news[-1].status) == [plan, 1, 1, settings]
    assert len(news) <= 3, "first, peer, channel"
    assert reports[-1].same_details


@pytest.mark.usefixtures("often")
async def test_a_router_that_keeps_none_is_told_details_every_time() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        async with running(told(decode_worker(), address)):
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 3)
    for report in router.streams[0]:
        assert not report.same_details and report.status.settings and report.status.memory_plan


@pytest.mark.parametrize("lease_ms", [FakeRouter.LEASE_MS, FakeRouter.LEASE_MS + 1])
async def test_a_router_with_another_lease_is_warned_of(
    lease_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    router = FakeRouter()
    async with serving(router) as address:
        async with running(told(decode_worker(lease_ms=lease_ms), address)):
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)
    assert ("same --lease" in caplog.text) is (lease_ms != FakeRouter.LEASE_MS)


async def test_a_change_of_load_is_reported_before_the_period_ends() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        prefill, decode = prefill_worker(), told(decode_worker(), address)
        async with running(prefill, decode), session(decode) as client:
            decode.model.gate.allow(0)
            _, answer = await client.start((1, 2, 3), greedy(400), [prefill])
            await decode.blocked()
            await decode.step_until(lambda: router.streams and router.streams[0][-1].status.running)
            await answer.end()
            await router.until(lambda r: not r.streams[0][-1].status.running)


@pytest.mark.usefixtures("often")
async def test_a_worker_in_a_long_step_goes_on_reporting_and_says_for_how_long() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        worker = told(decode_worker(), address)
        async with running(worker):
            await router.until(lambda r: r.streams and r.streams[0])
            step_ends = threading.Event()
            worker.context.port.post(lambda _: step_ends.wait(DEADLINE_S), "a long step")
            try:
                await router.until(lambda r: r.streams[0][-1].status.lag_us > 500_000)
                during = router.streams[0][-1].status
            finally:
                step_ends.set()
            await router.until(lambda r: 0 < r.streams[0][-1].status.lag_us < 100_000)
    assert len(router.streams[0]) >= 6, "a report a period"
    assert during.max_running == 4 and during.worker.worker_id == "d0", "as it was"


async def test_a_router_that_comes_back_is_found_again() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        worker = told(prefill_worker(), address)
        await worker.start()
        await router.until(lambda r: r.streams and r.streams[0])
    try:
        port = int(address.rpartition(":")[2])
        again = FakeRouter()
        async with serving(again, port):
            await again.until(lambda r: r.streams and r.streams[0])
            assert again.streams[0][0].HasField("hello")
    finally:
        await worker.stop()


async def test_a_worker_stops_while_a_call_to_its_router_begins_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """grpc.aio raises the status of the call then, not the cancellation."""
    begun = asyncio.Event()

    async def attend(self: Registration) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise PeerLostError("its stream broke: UNAVAILABLE")

    monkeypatch.setattr(Registration, "_attend", attend)
    worker = told(prefill_worker(), "127.0.0.1:1")
    await worker.start()
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        await worker.stop()


@pytest.mark.usefixtures("often")
async def test_a_router_that_moves_is_followed_to_its_new_address() -> None:
    """The worker leaves an old process of it that still answers: there is one registration."""
    old, new = FakeRouter(router_id="router-0/a"), FakeRouter(router_id="router-0/b")
    async with serving(old) as first, serving(new) as second:
        worker = decode_worker()
        async with running(worker):
            worker.runtime.meet_routers({"router-0": first})
            await old.until(lambda r: r.streams and r.streams[0])
            worker.runtime.meet_routers({"router-0": second})
            await new.until(lambda r: r.streams and len(r.streams[0]) >= 2)
            assert new.streams[0][0].hello == worker.context.hello
            (registration,) = worker.runtime._registrations
            assert registration.router_id == "router-0/b"
            await old.until(lambda r: r.ended == 1)
            worker.runtime.meet_routers({"router-0": second})
            seen = len(new.streams[0])
            await new.until(lambda r: len(r.streams[0]) >= seen + 2)
            assert len(new.streams) == 1, "nothing has changed"


@pytest.mark.usefixtures("often")
async def test_a_router_that_moves_has_to_prove_its_name() -> None:
    """Another router may listen at the address that one has left."""
    router = FakeRouter(router_id="router-0/a")
    async with serving(router) as address:
        worker = decode_worker()
        async with running(worker):
            worker.runtime.meet_routers({"router-1": address, "router-0": address})
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)
            other, mine = worker.runtime._registrations
            assert mine.router_id == "router-0/a" and other.router_id is None
            assert len(router.streams) == 1


@pytest.mark.usefixtures("often")
async def test_routers_share_a_worker_and_one_alone_has_it_all() -> None:
    older = FakeRouter(router_id="router-9/a")
    routers = [
        FakeRouter(router_id=f"router-{i}/a", demand=worker_pb2.Demand(most=6)) for i in range(2)
    ]
    names = ["router-0", "router-1"]
    async with serving(older) as third, serving(routers[0]) as first:
        async with serving(routers[1]) as second:
            worker = told(decode_worker(), first, second, third)
            await worker.start()
            for router in routers:
                await router.until(lambda r: r.streams and r.streams[-1][-1].share.units == 3)
                await router.until(lambda r: list(r.streams[-1][-1].routers) == names)
            await older.until(lambda r: r.streams and len(r.streams[0]) > 2)
            assert not any(report.HasField("share") for report in older.streams[0])
        await routers[0].until(lambda r: list(r.streams[-1][-1].routers) == names[:1])
        assert not routers[0].streams[-1][-1].HasField("share")
        await worker.stop()


@pytest.mark.usefixtures("often")
async def test_a_report_that_takes_too_long_to_write_is_no_end_of_reports() -> None:
    """A report that outlasts its deadline ends the stream, as when this worker or the router was
    held up, and the worker registers again."""
    router = FakeRouter()
    async with serving(router) as address:
        worker = told(decode_worker(), address)
        async with running(worker):
            (registration,) = worker.runtime._registrations
            for times in range(1, 6):
                await router.until(
                    lambda r, n=times: len(r.streams) == n and len(r.streams[-1]) >= 2
                )
                registration._deadline_s = 0.0
                await until(lambda: registration.router_id is None)
                registration._deadline_s = DEADLINE_S
            await router.until(lambda r: len(r.streams) == 6)


async def test_a_refusal_is_tried_again() -> None:
    router = FakeRouter(common_pb2.Error(code=common_pb2.INCOMPATIBLE, message="not you"))
    async with serving(router) as address:
        worker = told(prefill_worker(), address)
        async with running(worker):
            await router.until(lambda r: len(r.streams) >= 2 and r.streams[1])


@pytest.mark.usefixtures("often")
async def test_a_worker_that_stops_says_that_it_leaves() -> None:
    router = FakeRouter()
    async with serving(router) as address:
        prefill, decode = prefill_worker(), told(decode_worker(), address)
        async with running(prefill, decode), session(decode) as client:
            prefill.model.gate.allow(0)
            _, answer = await client.start((1, 2, 3), greedy(3), [prefill])
            await decode.opened(1)
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)  # it is registered
            stopping = decode.stop_soon(grace_s=5.0)
            await router.until(lambda r: r.streams[0][-1].leaving)
            prefill.model.gate.open()
            assert (await answer.end()).reason == common_pb2.LENGTH, "what is under way may end"
        await stopping  # it waits for the router to close its session


@pytest.mark.usefixtures("often")
async def test_an_idle_worker_that_stops_has_been_heard_to_leave() -> None:
    """Or the router would take it for lost, and wait for it."""
    router = FakeRouter()
    async with serving(router) as address:
        worker = told(decode_worker(), address)
        async with running(worker):
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)
        assert router.streams[0][-1].leaving


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("takes_back", [True, False])
async def test_a_worker_returns_from_a_drain_that_is_under_way(takes_back: bool) -> None:
    """takes_back: False for a router of the release before, with which it registers anew."""
    router = FakeRouter()
    router.takes_back = takes_back
    async with serving(router) as address:
        prefill, decode = prefill_worker(), told(decode_worker(), address)
        async with running(prefill, decode), session(decode) as client:
            prefill.model.gate.allow(0)
            _, answer = await client.start((1, 2, 3), greedy(3), [prefill])
            await decode.opened(1)
            await router.until(lambda r: r.streams and len(r.streams[0]) >= 2)
            draining = asyncio.create_task(decode.runtime.drain(DEADLINE_S))
            await router.until(lambda r: r.streams and r.streams[0][-1].leaving)
            await decode.runtime.undrain()
            await draining
            if takes_back:
                assert len(router.streams) == 1 and not router.streams[0][-1].leaving
            else:
                await router.until(lambda r: len(r.streams) == 2 and r.streams[1])
                assert not router.streams[1][-1].leaving
            prefill.model.gate.open()
            assert (await answer.end()).reason == common_pb2.LENGTH
            await decode.runtime.undrain()  # of no drain: nothing
            assert len(router.streams) == 2 - takes_back


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_two_lives_of_one_worker_are_told_apart(role: Role) -> None:
    incarnations = []
    for _ in range(2):
        worker = TestWorker("w0", role)
        async with running(worker):
            incarnations.append(worker.started.incarnation)
    assert incarnations[0] < incarnations[1]


def doubting(worker_id: str, router: str) -> TestWorker:
    """A worker that knows of a revoked router, and is told to join the one at `router`."""
    folder = folder_of(ProcessRole.PREFILL, worker_id)
    (folder / "revoked").write_text(f"router-9.router.{CLUSTER}.baton\n")
    return told(prefill_worker(worker_id), router)


async def test_where_a_router_was_revoked_another_proves_its_own_name() -> None:
    honest = FakeRouter(router_id="router-0/1")
    async with serving(honest) as address, running(doubting("p-doubts", address)):
        await honest.until(lambda r: len(r.streams) == 2 and len(r.streams[1]) > 2)
    assert len(honest.streams[0]) == 1


async def test_where_a_router_was_revoked_one_with_a_false_name_is_not_joined() -> None:
    liar = FakeRouter(router_id="router-1/1")  # its certificate says router-0
    async with serving(liar) as address, running(doubting("p-doubts-too", address)):
        await liar.until(lambda r: len(r.streams) == 3)
    assert {len(stream) for stream in liar.streams[:2]} == {1}


@pytest.mark.parametrize("says", [True, False])
async def test_a_registration_with_a_router_of_a_known_name_outlasts_the_loss_of_another(
    monkeypatch: pytest.MonkeyPatch, says: bool
) -> None:
    monkeypatch.setattr("baton.rpc.credentials.CHECK_S", 0.05)
    monkeypatch.setattr("baton.rpc.file_watcher.RECHECK_S", 0.0)
    monkeypatch.setattr("baton.worker.reporter.LONGEST_PERIOD_S", 0.2)
    router = FakeRouter(router_id="router-0/1")
    router.says_its_name = says
    worker_id = f"p-stays-{int(says)}"
    folder = folder_of(ProcessRole.PREFILL, worker_id)
    async with serving(router) as address, running(told(prefill_worker(worker_id), address)):
        await router.until(lambda r: r.streams and len(r.streams[0]) > 1)
        (folder / "revoked").write_text(f"router-9.router.{CLUSTER}.baton\n")
        if says:
            reports = len(router.streams[0])
            await router.until(lambda r: len(r.streams[0]) > reports + 3)
            await asyncio.sleep(0.5)  # ten looks at the list
            assert (len(router.streams), router.ended) == (1, 0)
        else:  # anybody's certificate could have let that connection stand
            await router.until(lambda r: r.ended and len(r.streams) >= 3)


async def test_a_router_that_says_anothers_name_is_not_registered_with() -> None:
    liar = FakeRouter(router_id="router-1/1")  # its certificate says router-0
    liar.says_its_name = True
    async with serving(liar) as address:
        worker = told(prefill_worker("p-asks"), address)
        async with running(worker):
            await asyncio.sleep(0.5)  # it would have registered by then
            assert not liar.streams


def news(router: FakeRouter) -> list[worker_pb2.CacheReport]:
    """Return what the first stream's worker reported of its cache after its first report."""
    return [report.cache for report in router.streams[0][1:] if report.HasField("cache")]


def evicted(router: FakeRouter) -> set[int]:
    return {digest for changes in news(router) for digest in changes.evicted}


async def test_routers_learn_which_states_are_cached_and_which_are_no_longer() -> None:
    early, late = FakeRouter(), FakeRouter()
    prompt = tuple(range(40))
    digests = [PrefixDigest().add(array("I", prompt[:n]).tobytes()) for n in range(8, 41, 8)]
    async with serving(early) as address, serving(late) as second:
        prefill, decode = prefill_worker(), decode_worker()
        async with running(told(prefill, address), decode), session(decode) as client:
            await early.until(lambda r: r.streams and r.streams[0])
            first = early.streams[0][0].cache
            assert first.whole and not first.made
            _, answer = await client.start(prompt, greedy(2), [prefill])
            await answer.end()
            await early.until(lambda r: news(r))

            registration = Registration(
                second,
                prefill.context.hello,
                prefill.context.credentials,
                prefill.runtime._reporter,
                FakeRouter.LEASE_MS,
                RouterShares(lambda: None),
            )
            task = asyncio.create_task(registration.run())
            await late.until(lambda r: r.streams and r.streams[0])
            task.cancel()
            whole = late.streams[0][0].cache
            assert whole.whole, "this router has heard nothing yet"
            made = dict(zip(whole.made, whole.depths, strict=True))
            assert made and set(made.items()) <= set(zip(digests, range(8, 41, 8), strict=True))

            await early.until(lambda r: news(r)[-1].sequence >= whole.sequence)
            heard: dict[int, int] = {}
            last = first.sequence
            for changes in news(early):  # one, or several where the answer takes long
                assert not changes.whole and changes.after == last
                last = changes.sequence
                heard |= zip(changes.made, changes.depths, strict=True)
            assert heard == made

            await prefill.context.port.call(lambda engine: engine.flush_cache())
            prefill.runtime._reporter.load_changed()
            await early.until(lambda r: evicted(r) >= set(made))
