"""A worker says what cannot be: it is set aside, and the router goes on as if it were not there."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, replies_of

from baton.core.errors import RequestError
from baton.proto.common_pb2 import DECODE, INVALID_REQUEST, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import EngineTotals, FileTier, HostTier, OwnerCount, WorkerStatus
from baton.router.cluster_view.contexts import LEAST_CONTEXT
from baton.router.cluster_view.status_check import check_details, check_status
from baton.router.cluster_view.worker_notes import SHOWN_S, WorkerNotes
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.cluster_view.worker_warnings import worker_warnings

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (WorkerStatus(decode_step_us=NAN), "decode_step_us is nan"),
        (WorkerStatus(prompt_token_us=INF), "prompt_token_us is inf"),
        (WorkerStatus(uptime_s=-1.0), "uptime_s is -1.0"),
        (WorkerStatus(link_bytes_per_s=1e300), "link_bytes_per_s"),
        (WorkerStatus(memory_held=1.5), "memory_held is 1.5; expected a number from 0 to 1"),
        (WorkerStatus(shortages={"slots": NAN}), "shortages"),
        (WorkerStatus(slow_links={"d1": -INF}), "slow_links"),
        (WorkerStatus(running=4_000_000_000), "running is 4000000000"),
        (WorkerStatus(max_running=1 << 31), "max_running"),
        (WorkerStatus(queued_tokens=(1 << 64) - 1), "queued_tokens"),
        (WorkerStatus(slots=[OwnerCount(owner="free", count=1 << 63)]), "slots and pages"),
        (WorkerStatus(host=HostTier(pages=[OwnerCount(owner="free", count=1 << 63)])),
         "slots and pages"),
        (WorkerStatus(totals=EngineTotals(host_hit_tokens=1 << 63)), "totals"),
        (WorkerStatus(totals=EngineTotals(file_hit_tokens=1 << 63)), "totals"),
        (WorkerStatus(files=FileTier(files=1 << 63)), "files"),
        (WorkerStatus(files=FileTier(bytes=1 << 63)), "bytes of files"),
        (WorkerStatus(handoffs={"sending": 1 << 63}), "handoffs"),
        (WorkerStatus(totals=EngineTotals(preemptions=1 << 63)), "totals"),
        (WorkerStatus(totals=EngineTotals(accepted_lengths=[1 << 63])), "totals"),
        (WorkerStatus(totals=EngineTotals(accepted_lengths=[0] * 1025)), "1024 accepted lengths"),
        (WorkerStatus(max_model_len=1), "max_model_len is 1"),
        (WorkerStatus(max_model_len=LEAST_CONTEXT - 1), "max_model_len"),
        (WorkerStatus(max_model_len=(1 << 32) - 1), "max_model_len"),
        (WorkerStatus(settings={"device": "cpu"}), "expected JSON"),
        (WorkerStatus(settings={"device": "NaN"}), "expected JSON"),
        (WorkerStatus(settings={"device": "[1, -Infinity]"}), "expected JSON"),
        (WorkerStatus(settings={"device": "1e999"}), "expected JSON"),
        (WorkerStatus(settings={"device": "[{\"a\": 1e999}]"}), "expected JSON"),
        (WorkerStatus(settings={"device": "[" * 4000}), "expected JSON"),
        (WorkerStatus(settings={"device": '"' + "x" * 5000 + '"'}), "4096 characters"),
        (WorkerStatus(settings={"device": '"\\ud800"'}), "expected JSON"),
        (WorkerStatus(settings={"chunked_prefill_size": '"many"'}), "a whole number"),
        (WorkerStatus(settings={"chunked_prefill_size": "-1"}), "a whole number"),
        (WorkerStatus(settings={"mamba_full_memory_ratio": '"half"'}), "a number or null"),
        (WorkerStatus(rank_devices=["x" * (5 << 20)]), "status is"),
    ],
)  # fmt: skip
def test_what_no_worker_can_have_is_refused_by_name(status: WorkerStatus, named: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_status(status)
        check_details(status)
    assert named in str(refused.value) and len(str(refused.value)) < 400


def test_what_a_worker_has_is_accepted() -> None:
    settings = {
        "chunked_prefill_size": "8192",
        "mamba_checkpoint_grid": "0",
        "mamba_full_memory_ratio": "null",
        "device": '"cuda"',
    }
    status = WorkerStatus(
        running=3, max_running=256, max_model_len=1 << 20, page_size=16, uptime_s=1e8,
        decode_step_us=2e4, memory_held=1.0, shortages={"slots": 1.0}, settings=settings,
        slots=[OwnerCount(owner="free", count=9)],
    )  # fmt: skip
    check_status(status)
    check_details(status)
    check_status(WorkerStatus())


def spoil_settings(worker: FakeWorker) -> None:
    worker.settings["device"] = "no JSON"


def spoil_context(worker: FakeWorker) -> None:
    worker.max_model_len = 1


def spoil_load(worker: FakeWorker) -> None:
    worker.running = 4_000_000_000


SPOILS = pytest.mark.parametrize(
    ("spoil", "named"),
    [(spoil_settings, "settings"), (spoil_context, "max_model_len"), (spoil_load, "running")],
)


@SPOILS
async def test_a_worker_that_says_so_when_it_joins_is_refused_and_named(
    spoil: Callable[[FakeWorker], None], named: str, tmp_path: Path
) -> None:
    good = FakeRank("d0", answer=lambda start: [tokens_of(start, [7], last=True)])
    good.max_model_len = 4096
    async with Cluster(tmp_path) as cluster, FakeRank("d1") as odd:
        await cluster.add(FakeWorker("p0"), good)
        spoil(odd)
        reply = await odd.register(cluster.started.internal_address)
        assert reply.error.code == INVALID_REQUEST and named in reply.error.message
        info = await cluster.server_info()
        assert {w["worker_id"] for w in info["workers"]} == {"p0", "d0"}
        assert list(info["refused_workers"]) == ["d1"] and named in info["refused_workers"]["d1"]
        await within(replies_of(cluster.generate([11] * 100)))  # the context is the good one's


@SPOILS
async def test_a_worker_that_says_so_later_is_set_aside_and_comes_back_when_it_is_right(
    spoil: Callable[[FakeWorker], None], named: str, tmp_path: Path
) -> None:
    good = FakeRank("d0", answer=lambda start: [tokens_of(start, [7], last=True)])
    good.max_model_len = 4096
    async with Cluster(tmp_path) as cluster:
        odd = FakeWorker("p1")
        await cluster.add(FakeWorker("p0"), good, odd)
        spoil(odd)
        odd.report()
        await cluster.until(lambda workers: set(workers) == {"p0", "d0"})
        info = await cluster.server_info()
        assert named in info["refused_workers"]["p1"]
        await within(replies_of(cluster.generate([11] * 100)))
        odd.settings, odd.max_model_len, odd.running = {}, 0, 0
        while await within(odd.replies.get()) is not None:
            pass  # until the router's end of the stream
        reply = await odd.register(cluster.started.internal_address)
        assert not reply.HasField("error")
        assert (await cluster.server_info())["refused_workers"] == {}


async def context_of(cluster: Cluster) -> int:
    """Return the context that the router tells its clients."""
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
        reply = await client.get("/v1/models")
        tokens: int = reply.raise_for_status().json()["data"][0]["max_model_len"]
    return tokens


async def test_the_first_worker_does_not_set_the_context_of_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = FakeWorker("p0")
    odd.max_model_len = 64
    good = FakeRank("d0", answer=lambda start: [tokens_of(start, [7], last=True)])
    other = FakeWorker("p1")
    good.max_model_len = other.max_model_len = 4096
    async with Cluster(tmp_path) as cluster:
        await cluster.add(odd)
        assert await context_of(cluster) == 64  # there is no other
        await cluster.add(good, other)
        assert await context_of(cluster) == 4096
        odd.report()
        await cluster.until(lambda workers: set(workers) == {"d0", "p1"})
        refused = (await cluster.server_info())["refused_workers"]
        assert list(refused) == ["p0"]
        assert "its context of 64 tokens" in refused["p0"] and "have 4,096" in refused["p0"]
        assert f"refused worker p0: {refused['p0']}" in caplog.text
        await within(replies_of(cluster.generate([11] * 100)))


async def test_the_first_worker_refuses_no_others_by_a_longer_context(tmp_path: Path) -> None:
    odd, first, second = FakeWorker("p0"), FakeRank("d0"), FakeRank("d1")
    odd.max_model_len, first.max_model_len, second.max_model_len = 4096, 128, 128
    async with Cluster(tmp_path) as cluster, first:
        await cluster.add(odd)
        reply = await first.register(cluster.started.internal_address)
        assert "set aside" in reply.error.message
        assert await within(first.replies.get()) is None  # the router ended the stream
        await cluster.add(second)
        reply = await first.register(cluster.started.internal_address)
        assert not reply.HasField("error")
        assert set(await cluster.workers()) == {"p0", "d0", "d1"}
        assert await context_of(cluster) == 128


async def test_a_shorter_context_is_named_for_all_to_see(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(tmp_path) as cluster:
        small, large = FakeRank("d0"), FakeRank("d1")
        small.max_model_len, large.max_model_len = 1024, 4096
        await cluster.add(FakeWorker("p0"), large)
        assert (await cluster.server_info())["worker_warnings"] == {}
        await cluster.add(small)
        warnings = (await cluster.server_info())["worker_warnings"]
        assert list(warnings) == ["d0"]
        assert "context of 1,024 tokens is all that the cluster has" in warnings["d0"]
        assert f"worker d0: {warnings['d0']}" in caplog.text


def hello(worker_id: str, address: str) -> Hello:
    identity = WorkerIdentity(worker_id=worker_id, incarnation=1, role=DECODE, address=address)
    return Hello(
        protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity
    )  # fmt: skip


@pytest.mark.parametrize(
    ("address", "caller", "warned"),
    [
        ("127.0.0.1:7", "10.0.0.7", True),
        ("[::1]:7", "fd00::7", True),
        ("localhost:7", "10.0.0.7", True),
        ("127.0.0.1:7", "127.0.0.1", False),
        ("10.0.0.7:7", "10.0.0.7", False),
        ("decode.example:7", "10.0.0.7", False),
    ],
)
def test_a_loopback_address_of_a_worker_elsewhere_is_named(
    address: str, caller: str, warned: bool
) -> None:
    table = WorkerTable(1.0, lambda: 0.0)
    table.register(hello("d0", address))
    table.notes.joined("d0", caller)
    found = worker_warnings(table)
    assert list(found) == (["d0"] if warned else [])
    if warned:
        assert "give it --peer-host" in found["d0"]


def test_a_refused_worker_is_forgotten_when_it_asks_no_more() -> None:
    now = [0.0]
    notes = WorkerNotes(lambda: now[0])
    notes.refused("d1", "first")
    notes.refused("d0", "second")
    assert list(notes.reasons().items()) == [("d0", "second"), ("d1", "first")]
    now[0] = SHOWN_S + 1
    assert notes.reasons() == {}
