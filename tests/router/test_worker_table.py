"""Tests of the table of the cluster's workers, with a clock that the test turns."""

import pytest

from baton.core.error_codes import ErrorCode
from baton.core.errors import IncompatibleError, RequestError
from baton.core.role import Role
from baton.proto import common_pb2
from baton.proto.common_pb2 import DECODE, PREFILL, ROLE_UNSPECIFIED, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.worker_table import Change, WorkerTable
from baton.rpc.handshake import ABSENT
from baton.rpc.lease import TICKS_PER_LEASE

LEASE_S = 2.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A table with its clock and everything that it told its subscriber."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = WorkerTable(LEASE_S, self.clock)
        self.changes: list[Change] = []
        self.table.subscribe(self.changes.append)

    def pass_time(self, leases: float) -> None:
        """Tick as the watcher does, for so many leases."""
        for _ in range(round(leases * TICKS_PER_LEASE)):
            self.clock.now += self.table.tick_s
            self.table.tick()

    def names(self) -> list[str]:
        return [w.worker_id for w in self.table.workers()]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def hello(
    worker_id: str = "d0", incarnation: int = 1, role: common_pb2.Role = DECODE, **fingerprint: str
) -> Hello:
    identity = WorkerIdentity(
        worker_id=worker_id, incarnation=incarnation, role=role, address="127.0.0.1:1"
    )
    return Hello(
        protocol_major=PROTOCOL_MAJOR,
        protocol_minor=PROTOCOL_MINOR,
        worker=identity,
        fingerprint=fingerprint,
    )


def test_a_worker_that_reports_stays_and_one_that_is_silent_for_a_lease_goes(
    watched: Watched,
) -> None:
    talker = watched.table.register(hello("talker"))
    watched.table.register(hello("silent"))
    for _ in range(3):
        watched.pass_time(0.4)
        watched.table.report(talker, None, leaving=False)
    assert watched.names() == ["talker"]
    assert "2 s" in watched.changes[-1].reason


def test_a_lease_is_not_cut_short(watched: Watched) -> None:
    watched.table.register(hello())
    watched.pass_time(1)
    assert watched.names() == ["d0"]
    watched.pass_time(1 / TICKS_PER_LEASE)
    assert watched.names() == []


def test_workers_are_not_blamed_for_a_pause_of_the_router_itself(watched: Watched) -> None:
    """A pause of any length is excused: what a worker said meanwhile lies unread."""
    watched.table.register(hello())
    watched.clock.now += LEASE_S * 10
    watched.table.tick()
    assert watched.names() == ["d0"]
    watched.pass_time(1)
    assert watched.names() == []


def test_the_seconds_since_a_report_are_by_the_clock(watched: Watched) -> None:
    worker = watched.table.register(hello())
    watched.pass_time(0.4)
    assert watched.table.heard_s(worker) == pytest.approx(0.4 * LEASE_S)
    watched.table.report(worker, None, leaving=False)
    assert watched.table.heard_s(worker) == 0.0


def test_a_newer_incarnation_takes_the_place_and_the_older_one_is_ignored(
    watched: Watched,
) -> None:
    old = watched.table.register(hello(incarnation=1))
    new = watched.table.register(hello(incarnation=2))
    assert not watched.table.report(old, WorkerStatus(running=9), leaving=True)
    watched.table.remove(old, "its stream ended")
    (only,) = watched.table.workers()
    assert only.identity.incarnation == 2
    assert only.load == 0 and not only.leaving
    assert watched.table.report(new, WorkerStatus(running=3, waiting=1), leaving=False)
    assert watched.table.workers()[0].load == 4
    assert [(c.before is None, c.after is None) for c in watched.changes] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def test_an_older_incarnation_is_turned_away(watched: Watched) -> None:
    watched.table.register(hello(incarnation=7))
    with pytest.raises(IncompatibleError) as refused:
        watched.table.register(hello(incarnation=6))
    assert not refused.value.status.retryable
    assert "7" in refused.value.expected and "6" in refused.value.actual
    assert watched.table.workers()[0].identity.incarnation == 7


def test_the_same_start_may_register_again_when_its_stream_broke(watched: Watched) -> None:
    before = watched.table.register(hello())
    again = watched.table.register(hello())
    assert not watched.table.report(before, None, leaving=False)
    assert watched.table.report(again, None, leaving=False)


@pytest.mark.parametrize(
    ("theirs", "expected", "actual"),
    [
        ({"page_size": "64", "dtype": "bf16"}, "dtype=fp32", "dtype=bf16"),
        ({"page_size": "64"}, "dtype=fp32", f"dtype={ABSENT}"),
        ({"page_size": "64", "dtype": "fp32", "grid": "256"}, f"grid={ABSENT}", "grid=256"),
    ],
)
def test_a_differing_fingerprint_is_turned_away_with_both_values(
    watched: Watched, theirs: dict[str, str], expected: str, actual: str
) -> None:
    watched.table.register(hello("p0", role=PREFILL, page_size="64", dtype="fp32"))
    with pytest.raises(IncompatibleError) as refused:
        watched.table.register(hello("d0", role=DECODE, incarnation=1, **theirs))
    error = refused.value
    assert error.code is ErrorCode.INCOMPATIBLE
    assert (error.expected, error.actual) == (expected, actual)
    assert "p0" in error.message and "d0" in error.message
    assert watched.names() == ["p0"]


def test_a_worker_may_come_back_with_another_fingerprint_when_it_is_alone(
    watched: Watched,
) -> None:
    watched.table.register(hello(incarnation=1, dtype="fp32"))
    watched.table.register(hello(incarnation=2, dtype="bf16"))
    assert watched.table.workers()[0].fingerprint == {"dtype": "bf16"}


def test_another_major_protocol_is_turned_away(watched: Watched) -> None:
    theirs = hello()
    theirs.protocol_major += 1
    with pytest.raises(IncompatibleError) as refused:
        watched.table.register(theirs)
    assert refused.value.actual == f"{PROTOCOL_MAJOR + 1}.{PROTOCOL_MINOR}"


@pytest.mark.parametrize(
    "bad",
    [
        hello(role=ROLE_UNSPECIFIED),
        hello(worker_id=""),
        Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR),
    ],
)
def test_a_hello_without_identity_is_turned_away(watched: Watched, bad: Hello) -> None:
    with pytest.raises(RequestError):
        watched.table.register(bad)
    assert watched.names() == []


def test_leaving_is_told_once_and_so_is_its_end(watched: Watched) -> None:
    worker = watched.table.register(hello())
    for leaving in (True, True, False, False):
        watched.table.report(worker, None, leaving=leaving)
    assert not watched.table.workers()[0].leaving
    assert len(watched.changes) == 3


def test_details_are_those_of_the_last_status_that_had_them(watched: Watched) -> None:
    table = watched.table
    worker = table.register(hello())

    def settings(status: WorkerStatus | None, *, same: bool) -> dict[str, str]:
        table.report(worker, status, leaving=False, same_details=same)
        return dict(table.workers()[0].details.status.settings)

    first = WorkerStatus(running=1, settings={"chunked_prefill_size": "64"})
    assert settings(first, same=False) == {"chunked_prefill_size": "64"}
    assert settings(WorkerStatus(running=2), same=True) == {"chunked_prefill_size": "64"}
    assert table.workers()[0].status.running == 2
    assert table.workers()[0].details.prefill_chunk == 64
    assert settings(None, same=False) == {"chunked_prefill_size": "64"}
    assert settings(WorkerStatus(settings={"a": "1"}), same=False) == {"a": "1"}


def test_a_rank_has_left_while_it_leaves_and_after(watched: Watched) -> None:
    worker = watched.table.register(hello())
    for leaving in (False, True, False, True):
        watched.table.report(worker, None, leaving=leaving)
        assert watched.table.has_left(0) is leaving
    watched.table.remove(worker, "it has left")
    assert watched.table.has_left(0) and not watched.table.has_left(1)
    watched.table.register(hello(incarnation=2))
    assert not watched.table.has_left(0)
    assert watched.table.count(Role.DECODE) == 1 and watched.table.count(Role.PREFILL) == 0


def test_snapshots_are_ordered_by_name_as_people_count(watched: Watched) -> None:
    for name in ("decode-10", "decode-2", "decode-1"):
        watched.table.register(hello(name))
    watched.table.register(hello("prefill-0", role=PREFILL))
    ranks = watched.table.workers(Role.DECODE)
    assert [w.worker_id for w in ranks] == ["decode-1", "decode-2", "decode-10"]
