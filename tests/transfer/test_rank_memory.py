"""The memory of several ranks as channels see it: a segment's bytes are the same for any number of
ranks, and each rank gets all that it keeps and nothing else."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import on_gpu
from transfer.layouts import Pools
from transfer.rank_pools import RankPools, divides, page_layouts, slot_layouts
from transfer.wires import SOURCE, TARGET

from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.transfer.errors import ChecksumError
from baton.transfer.memory.coverage import Coverage
from baton.transfer.memory.rank_moves import RankMoves
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_state

RANKS = (1, 2, 3, 4, 6)
MOST_TOKENS = 4  # of whatever page size: four pages are there


@st.composite
def cuts(draw: st.DrawFn, slots: SlotLayout, pages: PageLayout, tokens: range) -> list[Segment]:
    """The whole state and some tokens, in segments of odd sizes, layer by layer or not."""
    found = list(cut_state(slots, draw(st.integers(1, 300))))
    layers = len(pages.layers)
    for index in range(layers) if draw(st.booleans()) else [None]:
        of = None if index is None else (index, index + 1)
        found += cut_kv(pages, tokens.start, tokens.stop, draw(st.integers(1, 300)), of)
    return draw(st.permutations(found))


@settings(deadline=None)
@given(slot_layouts, page_layouts, st.sampled_from(RANKS), st.sampled_from(RANKS), st.data())
def test_every_rank_gets_what_it_keeps_and_nothing_else(
    slots: SlotLayout, pages: PageLayout, p: int, d: int, data: st.DataObject
) -> None:
    if not all(divides(layout, size) for layout in (slots, pages) for size in (p, d)):
        return
    start = data.draw(st.integers(0, pages.page_size))
    tokens = range(start, data.draw(st.integers(start, MOST_TOKENS * pages.page_size)))
    whole = Pools(slots, pages)
    whole.randomise(torch.Generator().manual_seed(data.draw(st.integers(0, 2**32))))
    source, target = RankPools(slots, pages, p), RankPools(slots, pages, d, fill=0x5A)
    source.put(whole, SOURCE, SOURCE, range(MOST_TOKENS * pages.page_size))
    for segment in data.draw(cuts(slots, pages, tokens)):
        payload = b"".join(source.memory.read(segment, SOURCE))
        assert payload == b"".join(whole.memory.read(segment, SOURCE))
        checked = source.memory.checked(segment, SOURCE, [memoryview(payload)])
        assert payload == b"".join(checked)
        target.memory.write(segment, TARGET, memoryview(payload))
        assert b"".join(target.memory.written(segment, TARGET)) == payload
    expected = RankPools(slots, pages, d, fill=0x5A)
    expected.put(whole, SOURCE, TARGET, tokens)
    assert target.equals(expected)


@settings(deadline=None)
@given(slot_layouts, page_layouts, st.sampled_from(RANKS), st.sampled_from(RANKS), st.data())
def test_the_moves_of_all_segments_cover_each_rank_exactly_and_never_overlap(
    slots: SlotLayout, pages: PageLayout, p: int, d: int, data: st.DataObject
) -> None:
    if not all(divides(layout, size) for layout in (slots, pages) for size in (p, d)):
        return
    tokens = range(data.draw(st.integers(0, 2)), 3 * pages.page_size)
    moves = RankMoves(slots, pages, p, d)
    segments = data.draw(cuts(slots, pages, tokens))
    found: dict[tuple[bool, int, int], Coverage] = {}
    for segment in segments:
        for move in moves.of(segment):
            key = segment.kind is Kind.KV, move.destination.rank, move.block
            coverage = found.setdefault(key, Coverage())
            for row in range(move.rows):
                begin = move.destination.offset + row * move.destination.stride
                assert coverage.overlap(begin, begin + move.nbytes) is None
                coverage.add(begin, begin + move.nbytes)
    for rank in range(d):
        of_slot, of_page = slots.shard(rank, d), pages.shard(rank, d)
        state = found.get((False, rank, 0), Coverage())
        assert state.total == of_slot.state_bytes
        kv = sum(c.total for (of_kv, r, _), c in found.items() if of_kv and r == rank)
        assert kv == of_page.token_bytes * len(tokens)
    assert sum(map(moves.nbytes, segments)) == sum(c.total for c in found.values())


SLOTS = SlotLayout((RecurrentShape((12, 3), (4, 5, 4)),), torch.bfloat16, torch.float32)
PAGES = PageLayout((AttentionShape(2, 3),), 8, torch.bfloat16)


def test_a_rank_whose_copy_differs_is_named() -> None:
    target = RankPools(SLOTS, PAGES, 4)
    (segment,) = cut_kv(PAGES, 0, 11)
    size = 11 * PAGES.token_bytes
    target.memory.write(segment, TARGET, memoryview(bytes(size)))
    target.ranks[3][1].storage[TARGET.pages[1], 0] ^= 1  # ranks 2 and 3 keep the same head
    with pytest.raises(ChecksumError, match=r"rank 3 has other bytes of kv tokens \[0, 11\)"):
        target.memory.written(segment, TARGET)


@pytest.mark.parametrize(("p", "d"), [(1, 4), (4, 2), (2, 4), (4, 1)])
def test_pools_of_gpus_give_and_take_the_same_bytes_through_host_memory(p: int, d: int) -> None:
    whole = Pools(SLOTS, PAGES)
    whole.randomise(torch.Generator().manual_seed(random.randrange(1 << 32)))
    tokens = range(3, 3 * PAGES.page_size - 1)
    source = RankPools(SLOTS, PAGES, p, kept=on_gpu)
    target = RankPools(SLOTS, PAGES, d, fill=0x5A, kept=on_gpu)
    source.put(whole, SOURCE, SOURCE, range(MOST_TOKENS * PAGES.page_size))
    for segment in [*cut_state(SLOTS, 100), *cut_kv(PAGES, tokens.start, tokens.stop, 300)]:
        payload = b"".join(source.memory.read(segment, SOURCE))
        assert payload == b"".join(whole.memory.read(segment, SOURCE))
        assert payload == b"".join(source.memory.checked(segment, SOURCE, [memoryview(payload)]))
        target.memory.write(segment, TARGET, memoryview(payload))
        assert payload == b"".join(target.memory.written(segment, TARGET))
    expected = RankPools(SLOTS, PAGES, d, fill=0x5A)
    expected.put(whole, SOURCE, TARGET, tokens)
    assert target.equals(expected)


def test_spans_of_a_gpus_pools_name_the_device() -> None:
    pools = RankPools(SLOTS, PAGES, 2, kept=on_gpu)
    assert [span.device for span in pools.memory.spans] == [0] * 4
    assert pools.memory.spans[0].address == pools.storages[0].data_ptr()
