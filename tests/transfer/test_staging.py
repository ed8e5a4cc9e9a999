"""KV that a NIXL sender puts together for ranks that keep other heads, or a reader takes apart."""

import ctypes
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.polling import until
from transfer.layouts import Pools
from transfer.rank_pools import RankPools, divides, page_layouts
from transfer.test_pull import joined
from transfer.test_unequal_ranks import FROM, PAGES, SLOTS, check, engines
from transfer.wires import SOURCE, TARGET, TOKENS, Wire, connected

from baton.core.state_ref import StateRef
from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.transfer.channels.nixl import staging
from baton.transfer.channels.nixl.agent import NixlAgent, Parts
from baton.transfer.channels.nixl.crossing import Crossing
from baton.transfer.channels.nixl.gathering import Gathering
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.nixl.reader import NixlReader
from baton.transfer.channels.nixl.runs import runs_apart
from baton.transfer.channels.nixl.scattering import Scattering, StagedRead
from baton.transfer.channels.nixl.sender import NixlSender
from baton.transfer.channels.nixl.staging import Bytes, Staging
from baton.transfer.errors import ChannelError
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_prefix, cut_state, nbytes

RANKS = st.sampled_from([(1, 2), (2, 1), (2, 4), (4, 2), (1, 4), (3, 2), (2, 3), (6, 4)])
NO_SLOTS = SlotLayout((), torch.bfloat16, torch.float32)
SMALL = 256  # bytes, or three tokens of the largest layer: all its tokens take 432
FEW = 2


@given(st.data())
def test_a_buffer_brings_the_same_bytes_to_the_same_places_in_fewer_runs(
    data: st.DataObject,
) -> None:
    pages = data.draw(page_layouts.filter(lambda layout: bool(layout.layers)))
    p, d = data.draw(RANKS.filter(lambda ranks: all(divides(pages, size) for size in ranks)))
    start = data.draw(st.integers(0, 4 * pages.page_size - 1))
    end = data.draw(st.integers(start + 1, 4 * pages.page_size))
    first = data.draw(st.integers(0, len(pages.layers) - 1))
    layers = data.draw(st.none() | st.just((first, first + 1)))
    segment = Segment(Kind.KV, start, end, layers)
    source = RankPools(NO_SLOTS, pages, p)
    randomise(source, pages)
    moves = RankMoves(NO_SLOTS, pages, p, d)
    buffer = np.empty(nbytes(segment, pages), np.uint8)
    spans = source.memory.spans
    found = []
    for gathers in (False, True):
        target = RankPools(NO_SLOTS, pages, d, 0x5A)
        there = target.memory.spans, TARGET
        if gathers:
            gathering = Gathering(moves, spans, pages.page_size)
            runs = gathering.runs(segment, SOURCE, there, buffer)
            count = -(-end // pages.page_size) - start // pages.page_size
            assert len(runs[0]) == count * d * len(pages.components_of(layers))
        else:
            runs = runs_apart(moves, segment, (spans, SOURCE), there, pages.page_size)
        disjoint(runs[1])
        copied(*runs)
        found.append((target, int(runs[1][:, 1].sum())))
    assert found[0][1] == found[1][1] == moves.nbytes(segment)
    assert found[0][0].equals(found[1][0])


@given(st.data())
def test_reads_cover_what_each_rank_keeps_exactly_and_never_overlap(data: st.DataObject) -> None:
    """Source and target have their parts of the whole by their own layouts, not by the moves."""
    pages = data.draw(page_layouts.filter(lambda layout: bool(layout.layers)))
    p, d = data.draw(RANKS.filter(lambda ranks: all(divides(pages, size) for size in ranks)))
    start = data.draw(st.integers(0, 4 * pages.page_size - 1))
    end = data.draw(st.integers(start + 1, 4 * pages.page_size))
    segment = Segment(Kind.KV, start, end, None)
    source = RankPools(NO_SLOTS, pages, p)
    whole = randomise(source, pages)
    moves = RankMoves(NO_SLOTS, pages, p, d)
    there = source.memory.spans, SOURCE
    apart, expected = RankPools(NO_SLOTS, pages, d, 0x5A), RankPools(NO_SLOTS, pages, d, 0x5A)
    expected.put(whole, SOURCE, TARGET, range(start, end))
    size = data.draw(st.sampled_from([nbytes(segment, pages), 40, 0]))  # less: some lie apart
    buffer = np.full(size, 0xEE, np.uint8)
    scattering = Scattering(moves, apart.memory.spans, pages.page_size)
    staged = scattering.staged(segment, TARGET, there, buffer)
    disjoint(staged.ours)
    copied(staged.theirs, staged.ours)
    scattering.scatter(staged, buffer)
    assert apart.equals(expected)
    kept = sum(pages.shard(rank, d).token_bytes for rank in range(d)) * (end - start)
    assert written(staged, buffer) == kept and staged.nbytes <= kept


def written(staged: StagedRead, buffer: Bytes) -> int:
    """Bytes that a read writes into pools, by itself or from its buffer."""
    begin = buffer.ctypes.data
    into_pools = (at < begin or at >= begin + len(buffer) for at in staged.ours[:, 0].tolist())
    direct = sum(int(n) for n, there in zip(staged.ours[:, 1], into_pools, strict=True) if there)
    scattered = (m.nbytes * m.rows * len(c.pages) for c in staged.copies for m in c.group)
    return direct + sum(scattered)


@pytest.mark.parametrize(("p", "d", "tensors"), [(1, 2, 4 + 2), (2, 1, 8 + 1), (2, 4, 12 + 4)])
def test_a_read_has_one_run_a_page_of_each_tensor_that_a_source_rank_has(
    p: int, d: int, tensors: int
) -> None:
    """Latents, and heads that are alone in a row on both sides, are read for each rank that keeps
    them."""
    source, target, _ = engines(p, d)
    size = PAGES.page_size
    segment = Segment(Kind.KV, size, 3 * size, None)
    scattering = Scattering(RankMoves(SLOTS, PAGES, p, d), target.memory.spans, size)
    buffer = np.empty(nbytes(segment, PAGES), np.uint8)
    staged = scattering.staged(segment, TARGET, (source.memory.spans, SOURCE), buffer)
    assert len(staged.ours) == len(staged.theirs) == 2 * tensors


def copied(source: Parts, target: Parts) -> None:
    for (here, size, _), (into, into_size, _) in zip(source.tolist(), target.tolist(), strict=True):
        assert size == into_size
        ctypes.memmove(into, here, size)


def randomise(source: RankPools, pages: PageLayout) -> Pools:
    """Give the source's ranks their parts of random KV, and return it undivided."""
    whole = Pools(NO_SLOTS, pages)
    whole.randomise(torch.Generator().manual_seed(random.randrange(2**32)))
    source.put(whole, SOURCE, SOURCE, range(4 * pages.page_size))
    return whole


def disjoint(runs: Parts) -> None:
    order = runs[np.argsort(runs[:, 0])]
    assert (order[:-1, 0] + order[:-1, 1] <= order[1:, 0]).all()


WIDE = PageLayout((AttentionShape(4, 64), AttentionShape(4, 64)), 8, torch.bfloat16)
"""Layers whose parts fill pages, for two ranks and for four, without padding."""
MANY = 1 << 12


def many(holder: StateRef) -> StateRef:
    """A request of many pages: those of `holder`, again and again."""
    pages = tuple(holder.pages[page % len(holder.pages)] for page in range(MANY))
    return replace(holder, pages=pages, tokens=MANY * WIDE.page_size)


@pytest.mark.parametrize(("p", "d"), [(2, 2), (4, 4), (2, 4), (4, 1)])
def test_the_moves_of_many_pages_are_planned_once(
    p: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal numbers of ranks move whole blocks; others a run for each tensor of each page."""
    source, target = RankPools(NO_SLOTS, WIDE, p), RankPools(NO_SLOTS, WIDE, d)
    crossing = Crossing(source.memory, target.memory.spans)
    planned, of = [], RankMoves.of

    def counted(self: RankMoves, segment: Segment) -> Iterator[SegmentMove]:
        for move in of(self, segment):
            planned.append(move)
            yield move

    monkeypatch.setattr(RankMoves, "of", counted)
    segment = Segment(Kind.KV, 0, MANY * WIDE.page_size)
    ours, theirs = crossing.written(segment, many(SOURCE), many(TARGET), None)
    size = crossing.written_bytes(segment)
    assert 0 < len(planned) < 100
    assert int(ours[:, 1].sum()) == int(theirs[:, 1].sum()) == size
    assert size == MANY * WIDE.token_bytes * WIDE.page_size
    if p == d:
        assert len(ours) == MANY * p


def test_a_state_and_whole_pages_go_from_each_rank_to_its_own_as_they_lie() -> None:
    slots = SlotLayout((RecurrentShape((64, 3), (4, 32, 32)),), torch.bfloat16, torch.float32)
    whole = Pools(slots, WIDE)
    whole.randomise(torch.Generator().manual_seed(random.randrange(2**32)))
    source, target, end = (RankPools(slots, WIDE, 2, 0x5A) for _ in range(3))
    source.put(whole, SOURCE, SOURCE, range(32))
    end.put(whole, SOURCE, TARGET, range(32))
    crossing = Crossing(source.memory, target.memory.spans)
    for segment in (Segment(Kind.KV, 0, 32), Segment(Kind.STATE, 0, slots.state_bytes)):
        runs = crossing.written(segment, SOURCE, TARGET, None)
        assert len(runs[0]) == 2 * (4 if segment.kind is Kind.KV else 1)
        copied(*runs)
    assert target.equals(end)


def test_a_buffer_is_free_when_its_write_has_ended_and_no_sooner() -> None:
    pool = Staging(16, 2)
    taken = []
    for write in (7, 8):
        taken.append(pool.next.ctypes.data)
        pool.hold(write)
    assert pool.full and len(set(taken)) == 2
    pool.free(9)  # of a write without a buffer
    assert pool.full
    pool.free(7)
    assert not pool.full and pool.next.ctypes.data == taken[0]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "BUFFER_BYTES", SMALL)
    monkeypatch.setattr(staging, "BUFFERS", FEW)


class SlowReads:
    """Reads of which the reader learns some polls late, and what they have brought."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, polls: int) -> None:
        self.posted: dict[tuple[int, int], Parts] = {}
        self.ended: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.most = 0
        self.overwritten = False
        read, done = NixlAgent.read_parts, NixlAgent.done

        def noted(agent: NixlAgent, target: Parts, *more: Any) -> int:
            number = read(agent, target, *more)
            self.posted[id(agent), number] = target
            self.most = max(self.most, len(self.posted))
            return number

        def late(agent: NixlAgent, number: int) -> bool:
            key = id(agent), number
            if key not in self.posted:
                return done(agent, number)  # the probe
            brought = bytes_of(self.posted[key])
            if key not in self.ended:
                if done(agent, number):
                    self.ended[key] = polls, bytes_of(self.posted[key])
                return False
            left, before = self.ended.pop(key)
            self.overwritten |= brought != before
            if left:
                self.ended[key] = left - 1, before
            else:
                del self.posted[key]
            return not left

        monkeypatch.setattr(NixlAgent, "read_parts", noted)
        monkeypatch.setattr(NixlAgent, "done", late)


class SlowWrites:
    """Writes that end some polls late, or not before `go`, and what they read until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, polls: int, go: bool = True) -> None:
        self.go = go
        self.read: dict[tuple[int, int], tuple[int, Parts, bytes]] = {}
        self.most = 0
        self.overwritten = False
        write, done = NixlAgent.write_parts, NixlAgent.done

        def slow(agent: NixlAgent, source: Parts, *more: Any) -> int:
            number = write(agent, source, *more)
            self.read[id(agent), number] = (polls, source, bytes_of(source))
            self.most = max(self.most, len(self.read))
            return number

        def late(agent: NixlAgent, number: int) -> bool:
            left, source, before = self.read[id(agent), number]
            self.overwritten |= bytes_of(source) != before
            if left or not self.go:
                self.read[id(agent), number] = (max(left - 1, 0), source, before)
                return False
            if ended := done(agent, number):
                del self.read[id(agent), number]
            return ended

        monkeypatch.setattr(NixlAgent, "write_parts", slow)
        monkeypatch.setattr(NixlAgent, "done", late)


def bytes_of(runs: Parts) -> bytes:
    return b"".join(ctypes.string_at(at, size) for at, size, _ in runs.tolist())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (2, 4)], ids=str)
async def test_buffers_smaller_than_a_layer_are_never_overwritten_while_they_are_read(
    p: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, end = engines(p, d)
    async with connected("nixl", sides=(source, target)) as wire:
        limit = wire.connection.segment_bytes
        assert limit == SMALL
        slow = SlowWrites(monkeypatch, polls=3)
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        segments = [*cut_state(SLOTS, limit)]
        for layer in range(1, len(PAGES.layers)):
            segments += cut_kv(PAGES, FROM, TOKENS, limit, (layer, layer + 1))
        segments += cut_kv(PAGES, FROM, TOKENS, 4 * SMALL, (0, 1))  # larger: as the runs lie
        for segment in random.sample(segments, len(segments)):
            await writing.write(segment, SOURCE)
        await writing.finish()
        await until(lambda: wire.tickets.complete(ticket))
        await until(lambda: wire.sent == wire.applied)
        check(wire, end, d, len(segments))
        assert not slow.overwritten and not slow.read
        assert free_buffers(wire) == FEW


@pytest.mark.usefixtures("small")
async def test_a_cancelled_write_frees_its_buffers_once_nothing_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target, _ = engines(1, 2)
    async with connected("nixl", sides=(source, target)) as wire:
        slow = SlowWrites(monkeypatch, polls=0, go=False)
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        segments = [*cut_kv(PAGES, FROM, TOKENS, SMALL, (2, 3))][: FEW + 2]
        assert len(segments) > FEW
        for segment in segments:
            await writing.write(segment, SOURCE)
        await until(lambda: free_buffers(wire) == 0)
        writing.cancel()
        assert free_buffers(wire) == 0 and slow.most == FEW
        slow.go = True
        await writing.drained()
        assert free_buffers(wire) == FEW and not slow.overwritten
        with pytest.raises(ChannelError, match="cancelled"):
            await writing.finish()
        assert not wire.tickets.complete(ticket)


@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (2, 4), (4, 2)], ids=str)
async def test_reads_into_small_buffers_never_overwrite_one_another(
    p: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "BUFFER_BYTES", 3 * PAGES.token_bytes)
    monkeypatch.setattr(staging, "BUFFERS", FEW)
    source, target, end = engines(p, d)
    async with joined("nixl", sides=(source, target)) as (*_, reader):
        slow = SlowReads(monkeypatch, polls=3)
        for _ in range(2):
            await reader.read(cut_prefix(SLOTS, PAGES, FROM, TOKENS, 4 * SMALL), TARGET, SOURCE)
        assert target.equals(end, but=frozenset({0}))
        assert slow.most > 1 and not slow.overwritten and not slow.posted
        assert isinstance(reader, NixlReader)
        assert free_of(reader._peer) == FEW


def free_buffers(wire: Wire) -> int:
    assert isinstance(wire.connection, NixlSender)
    return free_of(wire.connection._peer)


def free_of(peer: NixlPeer | None) -> int:
    assert peer is not None and peer._staging is not None
    return len(peer._staging._free)
