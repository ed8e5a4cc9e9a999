"""Whatever order layers, chunks and tickets come in, everything leaves once, and nothing early."""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from transfer.layouts import PAGES, SLOTS, page_layouts, slot_layouts

from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.transfer.memory.segments import Kind, Segment, nbytes, pieces
from baton.transfer.outflow import Outflow

Cell = tuple[int, int]  # token, attention layer


class Forward:
    """A record of what a prompt's forwards have written so far."""

    def __init__(self, slots: SlotLayout, pages: PageLayout, tokens: int) -> None:
        self.flow = Outflow(slots, pages, tokens)
        self.slots, self.pages, self.tokens = slots, pages, tokens
        self.all_layers = range(len(pages.layers))
        self.kv: set[Cell] = set()
        self.state = 0
        self.sent: list[Segment] = []

    def take(self) -> None:
        for segment in self.flow.take():
            if segment.kind is Kind.STATE:
                assert segment.end <= self.state, "state left before its layer had run"
            else:
                assert cells(segment, self.all_layers) <= self.kv, "KV left before it was there"
            self.sent.append(segment)

    def chunk(self, end: int) -> None:
        self.kv |= {(t, layer) for t in range(end) for layer in self.all_layers}
        self.flow.computed(end)

    def layers(self, start: int, recurrent: int, attention: int) -> None:
        self.kv |= {(t, layer) for t in range(self.tokens) for layer in range(attention)}
        self.kv |= {(t, layer) for t in range(start) for layer in self.all_layers}
        self.state = max(self.state, self.slots.bytes_before(recurrent))
        self.flow.layers(start, recurrent, attention)

    def held(self) -> None:
        self.chunk(self.tokens)
        self.state = self.slots.state_bytes
        self.flow.held()


def cells(segment: Segment, all_layers: range) -> set[Cell]:
    layers = range(*segment.layers) if segment.layers else all_layers
    return {(t, layer) for t in range(segment.start, segment.end) for layer in layers}


def touched(segments: list[Segment], slots: SlotLayout, pages: PageLayout) -> Counter:
    return Counter(
        (segment.kind, piece.block, byte)
        for segment in segments
        for piece in pieces(segment, slots, pages)
        for byte in range(piece.offset, piece.offset + piece.nbytes)
    )


@given(
    slots=slot_layouts,
    pages=page_layouts,
    ends=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    kv_from=st.integers(0, 40),
    marks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=4),
    granted=st.integers(0, 8),
    last_chunk_late=st.booleans(),
    limit=st.integers(1, 400),
)
def test_everything_leaves_once_and_nothing_before_it_is_there(
    slots: SlotLayout,
    pages: PageLayout,
    ends: list[int],
    kv_from: int,
    marks: list[tuple[int, int]],
    granted: int,
    last_chunk_late: bool,
    limit: int,
) -> None:
    """granted: how many facts come before the ticket does."""
    ends = sorted(set(ends))
    tokens, start = ends[-1], ends[-2] if len(ends) > 1 else 0
    kv_from = min(kv_from, tokens)
    forward = Forward(slots, pages, tokens)
    facts: list[Callable[[], None]] = [partial(forward.chunk, end) for end in ends[:-1]]
    if last_chunk_late and facts:
        facts.pop()  # its result is known after layers of the next step have run
    for recurrent, attention in sorted(marks):
        r, a = min(recurrent, len(slots.layers)), min(attention, len(pages.layers))
        facts.append(partial(forward.layers, start, r, a))
    facts.append(forward.held)
    for number, fact in enumerate(facts):
        if number == min(granted, len(facts) - 1):
            forward.flow.begin(kv_from, limit)
        fact()
        if number >= granted:
            forward.take()
            assert not forward.flow.take(), "what has left, left again"
    forward.take()
    assert forward.flow.over
    wanted = [Segment(Kind.KV, kv_from, tokens)] if kv_from < tokens else []
    wanted += [Segment(Kind.STATE, 0, slots.state_bytes)] if slots.state_bytes else []
    assert touched(forward.sent, slots, pages) == touched(wanted, slots, pages)


def test_after_the_last_layer_only_that_layer_remains() -> None:
    flow = Outflow(SLOTS, PAGES, 20)
    flow.begin(0, 1 << 20)
    flow.computed(8)
    sent = flow.take()
    for recurrent, attention in ((1, 0), (1, 1)):
        flow.layers(8, recurrent, attention)
        sent += flow.take()
    assert not flow.over
    flow.layers(8, 2, 2)
    rest = flow.take()
    assert flow.over
    last = SLOTS.state_bytes - SLOTS.bytes_before(1) + 12 * PAGES.bytes_of((1, 2))
    assert sum(nbytes(segment, PAGES) for segment in rest) == last
    assert {segment.layers for segment in rest} == {(1, 2), None}


def test_what_is_there_when_the_ticket_comes_leaves_for_all_layers_at_once() -> None:
    flow = Outflow(SLOTS, PAGES, 20)
    for recurrent, attention in itertools.product((0, 1, 2), (1, 2)):
        flow.layers(0, recurrent, attention)
    flow.begin(8, 1 << 20)
    assert [s.layers for s in flow.take() if s.kind is Kind.KV] == [None]
    assert flow.over
