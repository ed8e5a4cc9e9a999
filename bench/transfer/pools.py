"""Pools with the sizes of real models, without a model, and the segments sent from them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from baton.core.state_ref import StateRef
from baton.engine.layout.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage, RankStorages
from baton.engine.memory.state_pool import StatePool
from baton.transfer.memory.rank_memory import RankMemory
from baton.transfer.memory.regions import EngineMemory, Memory
from baton.transfer.memory.segments import Segment, cut_kv, cut_state

PAGE_SIZE = 64
# 16 KiB of KV a token, and 4.25 MB of state a layer, as Nemotron-Nano-9B-v2 has them.
PAGES = PageLayout((AttentionShape(8, 128),) * 4, PAGE_SIZE, torch.bfloat16)
LAYER = RecurrentShape((10240, 3), (128, 64, 128))
SLOT, SLOTS = 1, 2


@dataclass(frozen=True)
class TransferCase:
    """The content of one hand-off: whole state layers, or KV alone."""

    name: str
    layers: int  # of recurrent state; 0: no state
    tokens: int  # of KV; 0: none

    def nbytes(self, slots: SlotLayout) -> int:
        """Return the bytes of payload."""
        state = sum(c.nbytes for c in slots.components if c.layer < self.layers)
        return state + self.tokens * PAGES.token_bytes

    def kept_bytes(self, slots: SlotLayout, ranks: int) -> int:
        """Return the bytes of payload that so many ranks keep, together."""
        parts = [(slots.shard(r, ranks), PAGES.shard(r, ranks)) for r in range(ranks)]
        state = sum(c.nbytes for s, _ in parts for c in s.components if c.layer < self.layers)
        return state + sum(p.token_bytes for _, p in parts) * self.tokens

    def segments(self, slots: SlotLayout, limit: int) -> Iterator[Segment]:
        """Return the segments in the order in which a prefill worker sends them."""
        yield from cut_kv(PAGES, 0, self.tokens, limit)
        state = sum(c.nbytes for c in slots.components if c.layer < self.layers)
        yield from cut_state(slots, limit, end=state)


CASES = (
    TransferCase("state_49mb", 11, 0),
    TransferCase("state_144mb", 33, 0),
    TransferCase("state_304mb", 70, 0),
    TransferCase("kv_1k", 0, 1024),
    TransferCase("kv_16k", 0, 16384),
)
LAYERS = max(case.layers for case in CASES)
TOKENS = max(case.tokens for case in CASES)


class Pools:
    """One engine's memory without the engine. The request's pages lie anywhere in it."""

    def __init__(self, seed: int, ranks: int = 1, where: str = "cpu") -> None:
        """where: the torch device of the pools."""
        device = torch.device(where)
        count = TOKENS // PAGE_SIZE
        whole = SlotLayout((LAYER,) * LAYERS, torch.bfloat16, torch.float32)
        parts = [(whole.shard(r, ranks), PAGES.shard(r, ranks)) for r in range(ranks)]
        pools = [(StatePool(s, SLOTS, device), PagePool(p, 1 + count, device)) for s, p in parts]
        generator = torch.Generator(device).manual_seed(seed)
        for storage in (pool.storage for pair in pools for pool in pair):
            storage.random_(0, 256, generator=generator)
        self.states, self.pages = pools[0]  # of the first rank
        self.memory: Memory = EngineMemory(self.states, self.pages)
        if ranks > 1:
            storages = tuple(RankStorage(s.storage, p.storage) for s, p in pools)
            self.memory = RankMemory(RankStorages(whole, PAGES, storages))
        order = list(range(1, count + 1))
        random.Random(seed).shuffle(order)
        self.holder = StateRef(SLOT, tuple(order), TOKENS)
