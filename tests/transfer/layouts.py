"""Layouts and pools with odd sizes, for the tests of this room."""

import torch
from hypothesis import strategies as st

from baton.engine.layout.layout import (
    AttentionShape,
    LatentShape,
    PageLayout,
    RecurrentShape,
    SlotLayout,
)
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.transfer.memory.regions import EngineMemory

recurrent_shapes = st.builds(
    RecurrentShape,
    conv=st.tuples(st.integers(1, 9), st.integers(1, 3)),
    ssm=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)),
)
slot_layouts = st.builds(
    SlotLayout,
    layers=st.lists(recurrent_shapes, max_size=4).map(tuple),
    conv_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    ssm_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
page_layouts = st.builds(
    PageLayout,
    layers=st.lists(
        st.builds(AttentionShape, st.integers(1, 3), st.integers(1, 7))
        | st.builds(LatentShape, st.integers(1, 9)),
        max_size=3,
    ).map(tuple),
    page_size=st.sampled_from([1, 3, 8, 16]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)

SLOTS = SlotLayout(
    (RecurrentShape((7, 3), (3, 5, 4)), RecurrentShape((5, 2), None)),
    torch.bfloat16,
    torch.float32,
)
PAGES = PageLayout((AttentionShape(2, 3), LatentShape(9)), 8, torch.bfloat16)


class Pools:
    """One engine's memory without the engine: poisoned, so that a stray write shows."""

    def __init__(
        self, slots: SlotLayout = SLOTS, pages: PageLayout = PAGES, fill: int = 0xA5
    ) -> None:
        cpu = torch.device("cpu")
        self.states = StatePool(slots, 4, cpu)
        self.pages = PagePool(pages, 12, cpu)
        self.states.storage.fill_(fill)
        self.pages.storage.fill_(fill)
        self.memory = EngineMemory(self.states, self.pages)

    def randomise(self, generator: torch.Generator) -> None:
        self.states.storage.random_(0, 256, generator=generator)
        self.pages.storage.random_(0, 256, generator=generator)
