"""The numbers of all workers together, which a router shows under other servers' names."""

from collections.abc import Mapping

from baton.core.role import Role
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import HostTier, OwnerCount, WorkerStatus
from baton.router.cluster_figures import ClusterFigures
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.cluster_view.worker_totals import WorkerTotals
from baton.rpc.metric_aliases.figures import ServedWork, Totals


def join(table: WorkerTable, name: str, incarnation: int = 1) -> Worker:
    role = PREFILL if name.startswith("p") else DECODE
    identity = WorkerIdentity(worker_id=name, incarnation=incarnation, role=role, address="h:1")
    return table.register(
        Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
    )


def counted(table: WorkerTable, worker: Worker, preemptions: int) -> None:
    status = WorkerStatus(totals=Totals(preemptions=preemptions).to_proto())
    assert table.report(worker, status, leaving=False)


def owners(counts: Mapping[str, int]) -> list[OwnerCount]:
    return [OwnerCount(owner=owner, count=count) for owner, count in counts.items()]


def test_counts_are_sums_and_fractions_are_means_weighted_by_pages() -> None:
    table = WorkerTable(10.0, lambda: 0.0)
    served = ServedWork(prompt_tokens=7, output_tokens=9)
    figures = ClusterFigures(table, lambda: 5, lambda: served)
    prefill, decode = join(table, "prefill-0"), join(table, "decode-0")
    table.report(
        prefill,
        WorkerStatus(
            running=1, waiting=2, page_size=16, memory_held=0.5,
            pages=owners({"free": 50, "cache": 30, "live": 20}),
            slots=owners({"free": 5, "live": 5}),
            host=HostTier(pages=owners({"free": 60, "cache": 30, "ticket": 5})),
        ),
        leaving=False,
    )  # fmt: skip
    table.report(
        decode,
        WorkerStatus(
            running=10, waiting=20, page_size=16, memory_held=0.1,
            pages=owners({"free": 270, "ticket": 10, "quarantine": 20}),
            slots=owners({"free": 30, "track": 10}),
        ),
        leaving=False,
    )  # fmt: skip
    found = figures()
    assert found.served is served
    assert (found.load.running, found.load.waiting) == (11, 5 + 22)
    assert (found.load.pages, found.load.pages_held, found.load.page_size) == (400, 50, 16)
    assert (found.load.slots, found.load.slots_held) == (50, 15)
    assert (found.load.host_pages, found.load.host_pages_used) == (95, 35)
    assert found.load.memory_held == (100 * 0.5 + 300 * 0.1) / 400


def test_a_router_without_workers_has_nothing_but_its_queue() -> None:
    load = ClusterFigures(WorkerTable(10.0, lambda: 0.0), lambda: 3, ServedWork)().load
    assert (load.running, load.waiting, load.pages, load.memory_held) == (0, 3, 0, 0.0)


def test_a_sum_keeps_what_workers_counted_that_are_gone() -> None:
    table = WorkerTable(10.0, lambda: 0.0)
    totals = WorkerTotals(table)
    one, other = join(table, "decode-0"), join(table, "decode-1")
    counted(table, one, 5)
    counted(table, other, 7)
    assert totals.sums().preemptions == 12
    counted(table, one, 6)  # no scrape sees this report before the worker goes
    table.remove(one, "of this test")
    assert table.count(Role.DECODE) == 1 and totals.sums().preemptions == 13


def test_a_worker_that_starts_again_counts_on() -> None:
    table = WorkerTable(10.0, lambda: 0.0)
    totals = WorkerTotals(table)
    counted(table, join(table, "decode-0", incarnation=1), 5)
    later = join(table, "decode-0", incarnation=2)
    assert totals.sums().preemptions == 5  # it has told nothing yet
    counted(table, later, 2)
    counted(table, later, 3)
    assert totals.sums().preemptions == 8


def test_a_worker_that_was_cut_off_and_comes_back_is_counted_once() -> None:
    table = WorkerTable(10.0, lambda: 0.0)
    totals = WorkerTotals(table)
    worker = join(table, "decode-0")
    counted(table, worker, 5)
    table.remove(worker, "its lease is over")
    counted(table, join(table, "decode-0"), 6)
    assert totals.sums().preemptions == 6
