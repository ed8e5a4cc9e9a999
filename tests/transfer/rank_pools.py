"""The memory of an engine with any number of ranks, without the engine, and what must lie there."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor
from transfer.layouts import Pools

from baton.core.errors import ConfigError
from baton.core.state_ref import StateRef
from baton.engine.layout.layout import (
    AttentionShape,
    Component,
    LatentShape,
    PageLayout,
    RecurrentShape,
    SlotLayout,
)
from baton.engine.layout.shards import SubBlock, spans
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage, RankStorages
from baton.engine.memory.state_pool import StatePool, component_view
from baton.transfer.memory.rank_memory import RankMemory
from baton.transfer.memory.regions import EngineMemory, Memory

Layout = SlotLayout | PageLayout

heads = st.sampled_from([12, 24])
groups = st.sampled_from([1, 2, 3, 4, 6, 12, 24])


@st.composite
def recurrent_shapes(draw: st.DrawFn) -> RecurrentShape:
    """[x | B | C] with an SSM state, or plain channels."""
    lead = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return RecurrentShape((draw(heads), lead), None)
    h, head_dim, g, d_state = draw(heads), draw(st.integers(1, 3)), draw(groups), 2
    fused = (SubBlock("x", h, head_dim), *(SubBlock(n, g, d_state, shared=True) for n in "BC"))
    return RecurrentShape((h * head_dim + 2 * g * d_state, lead), (h, head_dim, d_state), fused)


slot_layouts = st.builds(
    SlotLayout,
    layers=st.lists(recurrent_shapes(), max_size=3).map(tuple),
    conv_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    ssm_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
page_layouts = st.builds(
    PageLayout,
    layers=st.lists(
        st.builds(AttentionShape, groups, st.integers(1, 3))
        | st.builds(LatentShape, st.integers(1, 9)),
        max_size=3,
    ).map(tuple),
    page_size=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)


def divides(layout: Layout, size: int) -> bool:
    try:
        layout.shard(0, size)
    except ConfigError:
        return False
    return True


class RankPools:
    """The pools of `ranks` ranks, poisoned."""

    def __init__(
        self,
        slots: SlotLayout,
        pages: PageLayout,
        ranks: int,
        fill: int = 0xA5,
        kept: Callable[[Tensor], Tensor] = lambda storage: storage,
    ) -> None:
        """kept: where the memory under test finds the pools, as `on_gpu`."""
        cpu = torch.device("cpu")
        self.whole = slots, pages
        shards = [(slots.shard(r, ranks), pages.shard(r, ranks)) for r in range(ranks)]
        self.ranks = [(StatePool(s, 4, cpu), PagePool(p, 12, cpu)) for s, p in shards]
        for states, kv in self.ranks:
            states.storage.fill_(fill)
            kv.storage.fill_(fill)
        self.memory: Memory = EngineMemory(*self.ranks[0])
        if ranks > 1:
            storages = tuple(RankStorage(kept(s.storage), kept(p.storage)) for s, p in self.ranks)
            self.memory = RankMemory(RankStorages(slots, pages, storages))

    @property
    def storages(self) -> list[Tensor]:
        return [pool.storage for pair in self.ranks for pool in pair]

    def put(
        self, source: Pools, theirs: StateRef, ours: StateRef, tokens: range, state: bool = True
    ) -> None:
        """Bring the state of `theirs` to each rank that keeps it, tensor by tensor, by torch."""
        slots, pages = self.whole
        size = len(self.ranks)
        for rank, (states, kv) in enumerate(self.ranks):
            for component, part in _pairs(slots, states.layout) if state else ():
                whole = component_view(source.states.storage, component)[theirs.slot]
                component_view(states.storage, part)[ours.slot] = _cut(whole, component, rank, size)
            for component, part in _pairs(pages, kv.layout):
                whole = component_view(source.pages.storage, component)
                there = component_view(kv.storage, part)
                for token in tokens:
                    page, row = divmod(token, pages.page_size)
                    found = _cut(whole[theirs.pages[page]], component, rank, size)
                    there[ours.pages[page], row] = found[row]

    def equals(self, other: "RankPools", but: frozenset[int] = frozenset()) -> bool:
        """True if every byte is equal, but in the blocks `but`."""
        return all(
            torch.equal(a[_others(a, but)], b[_others(b, but)])
            for a, b in zip(self.storages, other.storages, strict=True)
        )


def _pairs(whole: Layout, part: Layout) -> list[tuple[Component, Component]]:
    return list(zip(whole.components, part.components, strict=True))


def _cut(whole: Tensor, component: Component, rank: int, size: int) -> Tensor:
    """The places that a rank keeps of an undivided tensor."""
    if not component.blocks:
        return whole
    places = [place for span in spans(component.blocks, rank, size) for place in span]
    return whole.index_select(component.axis, torch.tensor(places))


def _others(storage: Tensor, but: frozenset[int]) -> Tensor:
    return torch.tensor([block for block in range(len(storage)) if block not in but])
