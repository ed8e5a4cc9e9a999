"""Tests of what keeps memory in quarantine and what releases it, without processes and with the
test's own clock."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.state_ref import StateRef
from baton.decode.quarantine import Held, Quarantine, Writer
from baton.engine.request.request import Reservation
from baton.proto import common_pb2
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.tickets import Claim, Ticket
from baton.worker.host_process import (
    has_died,
    may_write_without_us,
    this_process,
    unprovable,
)

S = HandoffState
LEASE_S = 2.0
MOST = 3


@dataclass
class Room:
    """A quarantine, and what it says to the engine and to those who wait for memory."""

    now: float = 0.0
    posted: list[str] = field(default_factory=list)
    freed: list[Reservation] = field(default_factory=list)
    moves: list[HandoffState] = field(default_factory=list)
    closed: list[Handoff] = field(default_factory=list)

    def __post_init__(self) -> None:
        context: Any = SimpleNamespace(
            port=SimpleNamespace(post=lambda call, what: self.posted.append(what)),
            engine=SimpleNamespace(plan=SimpleNamespace(quarantine_slots=MOST)),
            handoffs=SimpleNamespace(close=self.closed.append),
            lease_s=LEASE_S,
        )
        grants: Any = SimpleNamespace(give_back=self.freed.append)
        self.quarantine = Quarantine(context, grants, lambda peer: None, lambda: self.now)

    def hold(self, writer: Writer, generation: int) -> Held:
        handoff = Handoff(HandoffId("r", 1), lambda h, source, to, why: self.moves.append(to))
        for state in (S.SCHEDULED, S.RESERVED):
            handoff.move(state)
        self.moves.clear()
        place = StateRef(1, (2,), 8)
        ticket = Ticket(handoff.name, Claim(TicketId(generation % 4, generation), 5, 6), place)
        reservation = Reservation(f"r.{generation}", place)
        held = Held(writer, ticket, reservation, handoff, S.CANCELLED)
        self.quarantine.hold(held, "a test")
        return held


def writer(name: str = "p0", incarnation: int = 1) -> Writer:
    identity = common_pb2.WorkerIdentity(worker_id=name, incarnation=incarnation)
    return Writer(identity, common_pb2.HostProcess())


def test_only_the_writers_word_on_this_very_ticket_ends_it() -> None:
    room = Room()
    held = room.hold(writer(), 7)
    number, generation = ticket = held.ticket.name
    assert (room.posted, room.moves, room.freed) == (["quarantine"], [S.QUARANTINED], [])
    for other in (TicketId(number, generation + 1), TicketId(number + 1, generation)):
        room.quarantine.drained(other)
        assert not room.freed
    for _ in range(2):  # a word that comes twice says nothing new
        room.quarantine.drained(ticket)
    assert room.freed == [held.reservation]
    assert room.moves == [S.QUARANTINED, S.CANCELLED]
    assert room.closed == [held.handoff]


def test_a_teardown_is_proof_for_that_writer_alone() -> None:
    room = Room()
    ours, others = room.hold(writer(), 1), room.hold(writer("p1"), 2)
    room.quarantine.torn_down(writer())
    assert room.freed == [ours.reservation]
    room.quarantine.torn_down(writer("p1", incarnation=2))
    assert room.freed == [ours.reservation], "another life's teardown proves nothing of this one"
    room.quarantine.torn_down(writer("p1"))
    assert room.freed == [ours.reservation, others.reservation]


def test_a_peer_that_has_come_back_is_asked_for_every_ticket_that_it_holds() -> None:
    room = Room()
    held = [room.hold(writer(), generation) for generation in (4, 5)]
    room.hold(writer("p1"), 6)
    questions = room.quarantine.questions(writer().peer)
    assert [(q.ticket_id, q.generation) for q in questions] == [h.ticket.name for h in held]
    assert not room.quarantine.questions(writer(incarnation=2).peer), "it cannot answer for it"


def test_a_peer_is_refused_past_the_bound_but_not_for_a_moment() -> None:
    room = Room()
    peer = writer().peer
    for generation in range(1, MOST + 1):
        assert room.quarantine.refusal(peer) is None
        room.hold(writer(), generation)
    assert room.quarantine.refusal(peer) is None, "that many cancels at once are no reason"
    room.now = LEASE_S
    refusal = room.quarantine.refusal(peer)
    assert refusal is not None and "p0" in refusal and f"{MOST} tickets" in refusal
    assert room.quarantine.refusal(writer("p1").peer) is None
    room.quarantine.drained(TicketId(1, 1))
    assert room.quarantine.refusal(peer) is None


def test_the_kernel_says_when_a_process_has_died() -> None:
    ours = this_process()
    assert not has_died(ours, ours)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        theirs = common_pb2.HostProcess()
        theirs.CopyFrom(ours)
        theirs.pid = child.pid
        theirs.started = started_of(child.pid)
        assert not has_died(ours, theirs)
        child.kill()
        while not has_died(ours, theirs):  # also as a zombie: it is not reaped yet
            pass
        assert child.returncode is None
    assert has_died(ours, theirs)


@pytest.mark.parametrize("field_name", ["boot_id", "pid_namespace"])
def test_nothing_is_concluded_of_a_process_that_cannot_be_seen(field_name: str) -> None:
    ours, theirs = this_process(), this_process()
    theirs.pid = 2**22 + 1
    assert has_died(ours, theirs)
    setattr(theirs, field_name, "elsewhere")
    assert not has_died(ours, theirs)


def test_another_machine_or_the_network_alone_cannot_write_without_us() -> None:
    ours, theirs = this_process(), this_process()
    theirs.maps_peers = True
    assert may_write_without_us(ours, theirs)
    theirs.maps_peers = False
    assert not may_write_without_us(ours, theirs)
    theirs.maps_peers, theirs.boot_id = True, "elsewhere"
    assert not may_write_without_us(ours, theirs)
    assert may_write_without_us(ours, common_pb2.HostProcess(maps_peers=True)), "who knows"


def test_what_cannot_name_us_needs_us_to_write_but_where_it_has_other_means() -> None:
    ours, theirs = this_process(), this_process()
    theirs.maps_peers = True
    assert unprovable(ours, theirs) is None, "its death is seen"
    theirs.pid_namespace = "pid:[1]"
    assert not may_write_without_us(ours, theirs)
    assert unprovable(ours, theirs) is None, "a teardown is proof"
    theirs.maps_namespaces = True
    assert may_write_without_us(ours, theirs)
    why = unprovable(ours, theirs)
    assert why is not None and "pid namespace" in why and "UCX_TLS" in why


def test_nobody_is_looked_for_in_another_namespaces_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = this_process()
    theirs.pid = 2**22 + 1
    assert has_died(this_process(), theirs)
    for name in ("sys", str(os.getpid())):
        (tmp_path / name).symlink_to(f"/proc/{name}")
    (tmp_path / "1").symlink_to(f"/proc/{os.getpid()}")
    (tmp_path / "self").symlink_to("1")
    monkeypatch.setattr("baton.worker.host_process._PROC", tmp_path)
    assert this_process().boot_id == theirs.boot_id
    assert not has_died(this_process(), theirs)


def test_pools_on_a_device_may_be_written_from_any_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert this_process(on_device=True).maps_namespaces
    monkeypatch.setenv("UCX_TLS", "rc")
    assert not this_process(on_device=True).maps_namespaces


@pytest.mark.parametrize(
    ("transports", "alone"),
    [
        ("tcp", True), ("rc,ud", True), ("", False), ("tcp,cma", False), ("^cma", False),
        ("tcp,cuda_copy", True), ("rc,cuda_copy,gdr_copy", True), ("tcp,cuda", False),
        ("tcp,cuda_copy,cuda_ipc", False),
    ],
)  # fmt: skip
def test_ucx_tls_says_whether_writers_need_the_network(
    transports: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    assert this_process().maps_peers is not alone


def started_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])
