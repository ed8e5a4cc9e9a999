"""A ticket fences the bytes: what it does not allow changes nothing."""

import random
import threading
from typing import Any

import pytest
import torch
from transfer.layouts import PAGES, SLOTS, Pools

from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.state_ref import StateRef
from baton.transfer.errors import FrameError, TicketError, TransferError
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_state, nbytes
from baton.transfer.tickets import Claim, Ticket, TicketTable

TOKENS = 13


class Table:
    def __init__(self) -> None:
        self.pools = Pools()
        self.table = TicketTable(self.pools.memory, first_generation=100)
        self.received: list[Ticket] = []
        self.broken: list[tuple[Ticket, TransferError]] = []

    def grant(
        self,
        slot: int = 1,
        pages: tuple[int, ...] = (3, 5),
        kv_from: int = 0,
        state: Kind = Kind.STATE,
    ) -> Ticket:
        return self.table.grant(
            HandoffId("r", 1),
            StateRef(slot, pages, TOKENS, kv_from),
            prompt_hash=7,
            sampling_hash=8,
            state=state,
            on_received=self.received.append,
            on_broken=lambda ticket, error: self.broken.append((ticket, error)),
        )

    def bytes(self) -> bytes:
        storages = (self.pools.states.storage, self.pools.pages.storage)
        return b"".join(s.numpy().tobytes() for s in storages)


@pytest.fixture
def table() -> Table:
    return Table()


def payload(segment: Segment) -> memoryview:
    return memoryview(random.randbytes(nbytes(segment, PAGES)))


def test_a_ticket_is_complete_when_every_byte_is_there_in_any_order(table: Table) -> None:
    ticket = table.grant(kv_from=3)
    segments = [*cut_state(SLOTS, 50), *cut_kv(PAGES, 3, TOKENS, 60)]
    random.shuffle(segments)
    for segment in segments:
        assert not table.table.complete(ticket)
        table.table.apply(ticket.claim, segment, payload(segment))
    assert table.table.complete(ticket)
    assert table.received == [ticket] * len(segments)
    got = table.table.received(ticket.claim)
    assert (got.segments, got.bytes_state) == (len(segments), SLOTS.state_bytes)
    assert got.bytes_kv == (TOKENS - 3) * PAGES.token_bytes


def test_the_bytes_land_where_the_ticket_says_and_nowhere_else(table: Table) -> None:
    ticket = table.grant(slot=2, pages=(7, 4))
    before = table.pools.states.storage.clone(), table.pools.pages.storage.clone()
    for segment in (*cut_state(SLOTS), *cut_kv(PAGES, 0, TOKENS)):
        table.table.apply(ticket.claim, segment, payload(segment))
    for storage, old, touched in (
        (table.pools.states.storage, before[0], {2}),
        (table.pools.pages.storage, before[1], {7, 4}),
    ):
        changed = {row for row in range(len(old)) if not torch.equal(storage[row], old[row])}
        assert changed == touched


@pytest.mark.parametrize("step", [-1, 1])
def test_another_generation_is_refused_and_no_byte_changes(table: Table, step: int) -> None:
    ticket = table.grant()
    before = table.bytes()
    stale = Claim(TicketId(ticket.name.number, ticket.name.generation + step), 7, 8)
    segment = Segment(Kind.KV, 0, 4)
    with pytest.raises(TicketError, match="another generation") as refused:
        table.table.apply(stale, segment, payload(segment))
    assert refused.value.expected == str(ticket.name.generation)
    assert refused.value.actual == str(ticket.name.generation + step)
    with pytest.raises(TicketError):
        table.table.admit(stale)
    assert table.bytes() == before


def test_a_closed_ticket_takes_no_byte_even_when_its_id_is_used_again(table: Table) -> None:
    first = table.grant()
    assert table.table.close(first)
    assert not table.table.close(first)
    second = table.grant()
    assert second.name.number == first.name.number
    assert second.name.generation > first.name.generation
    before = table.bytes()
    segment = Segment(Kind.STATE, 0, 10)
    with pytest.raises(TicketError):
        table.table.apply(first.claim, segment, payload(segment))
    assert table.bytes() == before
    assert not table.table.close(first)
    table.table.apply(second.claim, segment, payload(segment))


def test_an_unknown_ticket_is_refused(table: Table) -> None:
    with pytest.raises(TicketError, match="not open"):
        table.table.admit(Claim(TicketId(3, 101), 7, 8))


@pytest.mark.parametrize(("prompt", "sampling"), [(1, 8), (7, 1)])
def test_a_writer_that_computed_something_else_is_not_admitted(
    table: Table, prompt: int, sampling: int
) -> None:
    ticket = table.grant()
    table.table.admit(ticket.claim)
    with pytest.raises(TicketError, match="another prompt"):
        table.table.admit(Claim(ticket.name, prompt, sampling))


@pytest.mark.parametrize(
    "segment",
    [
        Segment(Kind.KV, TOKENS - 1, TOKENS + 1),
        Segment(Kind.KV, 1, 3),
        Segment(Kind.KV, 5, 5),
        Segment(Kind.STATE, 0, SLOTS.state_bytes + 1),
        Segment(Kind.KV, 3, 5, (1, 3)),
        Segment(Kind.KV, 3, 5, (1, 1)),
    ],
    ids=str,
)
def test_bytes_outside_the_ticket_are_refused(table: Table, segment: Segment) -> None:
    ticket = table.grant(kv_from=2)
    before = table.bytes()
    with pytest.raises(FrameError, match="outside"):
        table.table.apply(ticket.claim, segment, payload(segment))
    assert table.bytes() == before


def test_bytes_that_came_already_or_have_the_wrong_size_are_refused(table: Table) -> None:
    ticket = table.grant()
    first = Segment(Kind.KV, 4, 9)
    table.table.apply(ticket.claim, first, payload(first))
    before = table.bytes()
    for again in (first, Segment(Kind.KV, 8, 10), Segment(Kind.KV, 0, 5), Segment(Kind.KV, 5, 6)):
        with pytest.raises(FrameError, match="overlaps"):
            table.table.apply(ticket.claim, again, payload(again))
    with pytest.raises(FrameError, match="bytes"):
        table.table.apply(ticket.claim, Segment(Kind.KV, 9, 10), payload(first))
    assert table.bytes() == before


def test_kv_may_come_layer_by_layer(table: Table) -> None:
    ticket = table.grant(kv_from=3)
    for segment in cut_state(SLOTS):
        table.table.apply(ticket.claim, segment, payload(segment))
    parts = [*cut_kv(PAGES, 3, 7), *cut_kv(PAGES, 7, TOKENS, layers=(0, 1))]
    for segment in parts:
        table.table.apply(ticket.claim, segment, payload(segment))
    assert not table.table.complete(ticket)
    for again in (Segment(Kind.KV, 6, 8, (1, 2)), Segment(Kind.KV, 8, 9)):
        with pytest.raises(FrameError, match="overlaps"):
            table.table.apply(ticket.claim, again, payload(again))
    for segment in cut_kv(PAGES, 7, TOKENS, layers=(1, 2)):
        table.table.apply(ticket.claim, segment, payload(segment))
    assert table.table.complete(ticket)
    got = table.table.received(ticket.claim)
    assert got.bytes_kv == (TOKENS - 3) * PAGES.token_bytes


def test_a_snapshot_is_no_live_state_and_a_live_state_no_snapshot(table: Table) -> None:
    for granted, sent in ((Kind.STATE, Kind.SNAPSHOT), (Kind.SNAPSHOT, Kind.STATE)):
        ticket, before = table.grant(state=granted), table.bytes()
        wrong = Segment(sent, 0, 8)
        with pytest.raises(FrameError, match="takes no"):
            table.table.apply(ticket.claim, wrong, payload(wrong))
        assert table.bytes() == before
        for segment in (*cut_state(SLOTS, kind=granted), *cut_kv(PAGES, 0, TOKENS)):
            table.table.apply(ticket.claim, segment, payload(segment))
        assert table.table.complete(ticket)
        table.table.close(ticket)


def test_close_waits_for_a_copy_that_is_under_way(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once close has returned the memory is someone else's: no copy may be in its middle."""
    inside, leave = threading.Event(), threading.Event()
    write = table.pools.memory.write

    def slow(*args: Any) -> None:
        inside.set()
        assert leave.wait(60)
        write(*args)

    monkeypatch.setattr(table.pools.memory, "write", slow)
    ticket, segment = table.grant(), Segment(Kind.STATE, 0, 8)
    writer = threading.Thread(
        target=table.table.apply, args=(ticket.claim, segment, payload(segment))
    )
    writer.start()
    assert inside.wait(60)
    closed: list[bytes] = []
    closer = threading.Thread(
        target=lambda: closed.append(table.bytes() if table.table.close(ticket) else b"")
    )
    closer.start()
    closer.join(0.05)
    assert not closed
    leave.set()
    writer.join(60)
    closer.join(60)
    assert closed == [table.bytes()]


def test_a_copy_that_found_its_ticket_open_is_refused_once_it_is_closed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up and the copy are two locks: what comes between them must not slip through."""
    ticket, before = table.grant(), table.bytes()
    find = table.table._entry

    def find_then_close(claim: Claim) -> object:
        entry = find(claim)
        table.table.close(ticket)
        return entry

    monkeypatch.setattr(table.table, "_entry", find_then_close)
    segment = Segment(Kind.STATE, 0, 8)
    with pytest.raises(TicketError, match="not open"):
        table.table.apply(ticket.claim, segment, payload(segment))
    assert table.bytes() == before


def test_what_breaks_reaches_the_owner_of_an_open_ticket_only(table: Table) -> None:
    ticket = table.grant()
    error = FrameError("broken")
    table.table.broken(ticket.claim, error)
    table.table.close(ticket)
    table.table.broken(ticket.claim, error)
    assert table.broken == [(ticket, error)]
