"""Tests that the segments of a transfer cover what is needed exactly once, for every layout."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from transfer.layouts import PAGES, SLOTS, page_layouts, slot_layouts
from transfer.sizes import bytes_needed

from baton.engine.layout.layout import Component, PageLayout, SlotLayout
from baton.transfer.memory.segments import (
    Kind,
    Segment,
    cut_kv,
    cut_state,
    nbytes,
    pieces,
)

limits = st.integers(1, 400)
token_runs = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple)


def touched(segments: list[Segment], slots: SlotLayout, pages: PageLayout) -> Counter:
    """(block, byte) of everything that the segments carry."""
    return Counter(
        (piece.block, byte)
        for segment in segments
        for piece in pieces(segment, slots, pages)
        for byte in range(piece.offset, piece.offset + piece.nbytes)
    )


def bytes_of_tokens(component: Component, page_size: int, low: int, high: int) -> range:
    token = component.nbytes // page_size
    return range(component.offset + low * token, component.offset + high * token)


@given(slot_layouts, limits)
def test_state_segments_cover_every_component_once_and_no_padding(
    slots: SlotLayout, limit: int
) -> None:
    segments = list(cut_state(slots, limit))
    wanted = Counter(
        (0, byte) for c in slots.components for byte in range(c.offset, c.offset + c.nbytes)
    )
    assert touched(segments, slots, PAGES) == wanted
    assert all(0 < nbytes(s, PAGES) <= limit for s in segments)


@given(page_layouts, token_runs, limits)
def test_kv_segments_cover_the_tokens_once_to_the_token(
    pages: PageLayout, run: list[int], limit: int
) -> None:
    start, end = run
    segments = list(cut_kv(pages, start, end, limit))
    wanted = Counter(
        (token // pages.page_size, byte)
        for token in range(start, end)
        for c in pages.components
        for byte in bytes_of_tokens(
            c, pages.page_size, token % pages.page_size, token % pages.page_size + 1
        )
    )
    assert touched(segments, SLOTS, pages) == wanted
    assert all(nbytes(s, pages) <= max(limit, pages.token_bytes) for s in segments)


@given(page_layouts, st.integers(0, 60), st.lists(st.integers(0, 60), max_size=5), limits)
def test_chunks_sent_as_they_end_cover_the_prompt_once(
    pages: PageLayout, tokens: int, cuts: list[int], limit: int
) -> None:
    ends = sorted({min(c, tokens) for c in cuts} | {0, tokens})
    segments = [
        s for low, high in itertools.pairwise(ends) for s in cut_kv(pages, low, high, limit)
    ]
    whole = list(cut_kv(pages, 0, tokens))
    assert touched(segments, SLOTS, pages) == touched(whole, SLOTS, pages)


@given(page_layouts, token_runs, st.lists(st.integers(0, 3), max_size=3), limits)
def test_kv_sent_layer_by_layer_is_what_all_layers_would_be(
    pages: PageLayout, run: tuple[int, int], cuts: list[int], limit: int
) -> None:
    ends = sorted({min(c, len(pages.layers)) for c in cuts} | {0, len(pages.layers)})
    segments = [
        segment
        for layers in itertools.pairwise(ends)
        for segment in cut_kv(pages, *run, limit=limit, layers=layers)
    ]
    assert touched(segments, SLOTS, pages) == touched([*cut_kv(pages, *run)], SLOTS, pages)
    for segment in segments:
        carried = sum(piece.nbytes for piece in pieces(segment, SLOTS, pages))
        assert carried == nbytes(segment, pages)


@given(slot_layouts, st.lists(st.integers(0, 4), max_size=4), limits)
def test_state_sent_as_its_layers_end_is_the_whole_state(
    slots: SlotLayout, cuts: list[int], limit: int
) -> None:
    ends = sorted({0, len(slots.layers), *(min(c, len(slots.layers)) for c in cuts)})
    for layer in ends:
        before = {byte for c in slots.components if c.layer < layer for byte in _bytes_of(c)}
        sent = [*cut_state(slots, limit, end=slots.bytes_before(layer))]
        assert set(touched(sent, slots, PAGES)) == {(0, byte) for byte in before}
    segments = [
        segment
        for low, high in itertools.pairwise(map(slots.bytes_before, ends))
        for segment in cut_state(slots, limit, start=low, end=high)
    ]
    assert touched(segments, slots, PAGES) == touched([*cut_state(slots)], slots, PAGES)


def _bytes_of(component: Component) -> range:
    return range(component.offset, component.offset + component.nbytes)


@given(slot_layouts, page_layouts, token_runs, limits)
def test_bytes_needed_is_what_the_segments_carry(
    slots: SlotLayout, pages: PageLayout, run: list[int], limit: int
) -> None:
    kv_from, tokens = run
    segments = [*cut_state(slots, limit), *cut_kv(pages, kv_from, tokens, limit)]
    assert sum(nbytes(s, pages) for s in segments) == bytes_needed(slots, pages, tokens, kv_from)
    for segment in segments:
        carried = sum(piece.nbytes for piece in pieces(segment, slots, pages))
        assert carried == nbytes(segment, pages)


def test_whole_pages_are_one_piece_each_when_nothing_pads_them() -> None:
    pages = PageLayout(PAGES.layers[:1] * 2, 16, PAGES.dtype)
    assert all(c.nbytes % 16 == 0 for c in pages.components)
    (segment,) = cut_kv(pages, 16, 64)
    assert segment == Segment(Kind.KV, 16, 64)
    assert [piece.block for piece in pieces(segment, SLOTS, pages)] == [1, 2, 3]
