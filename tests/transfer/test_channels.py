"""Tests that hold for every channel: two pools in one process, and the real transport between
them."""

import asyncio
import itertools
from collections.abc import Iterable

import pytest
import torch
from kit.polling import until
from transfer.layouts import PAGES, SLOTS
from transfer.sizes import NOTE_BYTES, bytes_needed
from transfer.wires import (
    CHANNELS,
    SOURCE,
    TARGET,
    TOKENS,
    Wire,
    connected,
    equal_state,
    same,
    tokens_of,
)

from baton.core.handoff_ids import TicketId
from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.transfer.channels import frames
from baton.transfer.channels.ends import WriteOperation
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.errors import ChannelError, ChecksumError, TicketError
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_state, nbytes
from baton.transfer.tickets import Claim, Received, Ticket

pytestmark = pytest.mark.parametrize("channel", CHANNELS)
ALL = (*cut_kv(PAGES, 0, TOKENS, 100), *cut_state(SLOTS, 70))


async def send(writing: WriteOperation, segments: Iterable[Segment]) -> Received:
    for segment in segments:
        await writing.write(segment, SOURCE)
    return await writing.finish()


def bytes_of(segment: Segment) -> int:
    return nbytes(segment, PAGES)


async def arrived(wire: Wire, ticket: Ticket) -> None:
    await until(lambda: wire.tickets.complete(ticket))


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize("kv_from", [0, 8, 11])
async def test_state_and_tokens_arrive_as_they_were(
    channel: str, verify: bool, kv_from: int
) -> None:
    async with connected(channel, verify) as wire:
        ticket = wire.grant(kv_from)
        segments = [*cut_kv(PAGES, kv_from, TOKENS, 100), *cut_state(SLOTS, 70)]
        sent = await send(wire.open(ticket), segments)
        await arrived(wire, ticket)
        assert sent == wire.tickets.received(ticket.claim)
        assert sent.segments == len(segments)
        assert sent.bytes_state == SLOTS.state_bytes
        needed = bytes_needed(SLOTS, PAGES, TOKENS, kv_from)
        assert sent.bytes_state + sent.bytes_kv == needed
        await until(lambda: wire.sent == wire.applied)
        assert equal_state(wire)
        target = tokens_of(wire.target, TARGET, kv_from, TOKENS)
        assert same(target, tokens_of(wire.source, SOURCE, kv_from, TOKENS))
        untouched = torch.cat([t.flatten() for t in tokens_of(wire.target, TARGET, 0, kv_from)])
        assert (untouched == 0x5A).all()
        assert not wire.broken


async def test_nothing_else_changes(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        before = wire.target.states.storage.clone(), wire.target.pages.storage.clone()
        await send(wire.open(ticket), ALL)
        await arrived(wire, ticket)
        padding = {0}  # NIXL tries its way there: it is never read
        for storage, old, touched in (
            (wire.target.states.storage, before[0], {TARGET.slot}),
            (wire.target.pages.storage, before[1], set(TARGET.pages)),
        ):
            changed = {row for row in range(len(old)) if not torch.equal(storage[row], old[row])}
            assert changed - padding == touched


async def test_blocks_that_travel_whole_are_the_same_as_pieces(channel: str) -> None:
    """Layouts without padding: a page, and a slot, is one run of bytes."""
    slots = SlotLayout((RecurrentShape((64, 3), (4, 8, 20)),) * 2, torch.float32, torch.float32)
    pages = PageLayout((AttentionShape(2, 16),) * 2, 16, torch.float32)
    assert slots.slot_bytes == slots.state_bytes
    assert pages.page_bytes == pages.token_bytes * pages.page_size
    async with connected(channel, slots=slots, pages=pages) as wire:
        ticket = wire.grant()
        segments = (*cut_kv(pages, 0, TOKENS), *cut_state(slots))
        await send(wire.open(ticket), segments)
        await arrived(wire, ticket)
        assert equal_state(wire)
        ours = tokens_of(wire.source, SOURCE, 0, TOKENS)
        assert same(ours, tokens_of(wire.target, TARGET, 0, TOKENS))
        needed, moved = bytes_needed(slots, pages, TOKENS), sum(wire.sent.values())
        assert needed <= moved <= needed + len(segments) * NOTE_BYTES


async def test_kv_of_some_layers_arrives_in_those_layers(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        low, high = cut_kv(PAGES, 0, 5, layers=(0, 1)), cut_kv(PAGES, 0, 5, layers=(1, 2))
        segments = (*high, *cut_kv(PAGES, 5, TOKENS), *low, *cut_state(SLOTS))
        await send(wire.open(ticket), segments)
        await arrived(wire, ticket)
        ours = tokens_of(wire.source, SOURCE, 0, TOKENS)
        assert same(ours, tokens_of(wire.target, TARGET, 0, TOKENS))


async def test_bytes_that_are_not_what_was_sent_break_the_ticket(
    channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum is of what the writer read: it reads once more than it says."""
    async with connected(channel) as wire:
        ticket = wire.grant()
        wrong = itertools.count()
        monkeypatch.setattr(frames, "checksum_of", lambda segment, payload: next(wrong))
        writing = wire.open(ticket)
        segment = Segment(Kind.KV, 8, 16)
        try:
            await send(writing, [segment])
        except ChecksumError as error:
            assert str(segment) in str(error)
            wire.broken.append(error)
        await until(lambda: wire.broken)
        assert isinstance(wire.broken[0], ChecksumError)
        assert str(segment) in str(wire.broken[0])
        assert not wire.tickets.received(ticket.claim).segments


async def test_a_ticket_of_another_generation_counts_nothing(channel: str) -> None:
    """A one-sided channel still writes the bytes; quarantine, not the ticket, keeps them
    harmless."""
    async with connected(channel) as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        stale = Claim(TicketId(ticket.name.number, ticket.name.generation + 1), 5, 6)
        if wire.receiver.one_sided:
            await send(wire.open(ticket, stale), cut_state(SLOTS, 10))
        else:
            with pytest.raises(TicketError, match="another generation"):
                await send(wire.open(ticket, stale), cut_state(SLOTS, 10))
            assert wire.target_bytes() == before
        assert wire.tickets.received(ticket.claim) == Received(0, 0, 0)
        assert not wire.broken, "the ticket that is open has nothing to do with it"


async def test_a_writer_that_computed_something_else_counts_nothing(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        other = Claim(ticket.name, 5, 7)
        if wire.receiver.one_sided:
            await send(wire.open(ticket, other), ALL)
        else:
            with pytest.raises(TicketError, match="another prompt"):
                await send(wire.open(ticket, other), ALL)
        assert wire.tickets.received(ticket.claim) == Received(0, 0, 0)


async def test_a_ticket_closed_midway_counts_nothing_more(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        writing = wire.open(ticket)
        first, *rest = cut_state(SLOTS, 40)
        await writing.write(first, SOURCE)
        await until(lambda: bool(wire.applied))
        wire.tickets.close(ticket)
        before = wire.target_bytes()
        if wire.receiver.one_sided:
            await send(writing, rest)
        else:
            with pytest.raises(TicketError, match="not open"):
                await send(writing, rest)
            assert wire.target_bytes() == before
        assert sum(wire.applied.values()) < SLOTS.state_bytes
        writing.cancel()
        await writing.drained()


async def test_a_ticket_that_its_last_byte_activated_is_no_error_to_the_writer(
    channel: str,
) -> None:
    """The rank may close it between the last byte and the writer's goodbye."""
    async with connected(channel) as wire:
        ticket = wire.grant()
        writing = wire.open(ticket)
        for segment in ALL:
            await writing.write(segment, SOURCE)
        await arrived(wire, ticket)
        wire.tickets.close(ticket)
        assert (await writing.finish()).bytes_state == SLOTS.state_bytes


async def test_after_a_cancel_has_drained_no_byte_changes(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        writing = wire.open(ticket)
        await writing.write(ALL[0], SOURCE)
        writing.cancel()
        await writing.drained()
        wire.tickets.close(ticket)
        before = wire.target_bytes()
        with pytest.raises((ChannelError, asyncio.CancelledError)):
            await send(writing, ALL[1:])
        assert wire.target_bytes() == before


async def test_the_sources_memory_may_change_once_flushed(channel: str) -> None:
    async with connected(channel) as wire:
        ticket = wire.grant()
        writing = wire.open(ticket)
        for segment in ALL:
            await writing.write(segment, SOURCE)
        await writing.flush()
        state = wire.source.states.storage[SOURCE.slot].clone()
        wire.source.states.storage[SOURCE.slot] = 0
        await writing.finish()
        await arrived(wire, ticket)
        wire.source.states.storage[SOURCE.slot] = state
        assert equal_state(wire)


class Counted(LinkRate):
    """A measurement that also counts the writes under way, and all bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.bytes = 0

    def begin(self) -> None:
        super().begin()
        self.under_way += 1

    def end(self, size: int) -> None:
        super().end(size)
        self.under_way -= 1
        self.bytes += size
        assert self.under_way >= 0


async def test_the_bandwidth_of_the_link_is_measured(
    channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(channel) as wire:
        link = Counted()
        monkeypatch.setattr(wire.connection, "link", link)
        for _ in range(4):  # the first stretch connects, and one is not enough
            ticket = wire.grant()
            await send(wire.open(ticket), ALL)
            await arrived(wire, ticket)
            await until(lambda: not link.under_way)
        assert link.bytes_per_s > 0
        assert 0 <= link.bytes - 2 * sum(bytes_of(each) for each in ALL) < 2 * 200 * len(ALL)
        writing = wire.open(wire.grant())
        await writing.write(ALL[0], SOURCE)
        writing.cancel()
        await writing.drained()
        await until(lambda: not link.under_way)


async def test_many_hand_offs_share_a_connection(channel: str) -> None:
    async with connected(channel) as wire:
        for _ in range(20):
            ticket = wire.grant()
            sent = await send(wire.open(ticket), ALL)
            await arrived(wire, ticket)
            assert sent == wire.tickets.received(ticket.claim)
            wire.tickets.close(ticket)
        assert equal_state(wire)
        assert not wire.broken
