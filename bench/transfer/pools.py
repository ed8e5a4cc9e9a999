"""Pools with the sizes of real models, without a model, and the segments sent from them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from baton.engine.memory.layout import AttentionShape, PageLayout, RecurrentShape, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.transfer.memory.regions import EngineMemory, Holder
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

    def __init__(self, seed: int) -> None:
        cpu = torch.device("cpu")
        count = TOKENS // PAGE_SIZE
        self.states = StatePool(SlotLayout((LAYER,) * LAYERS, torch.bfloat16, torch.float32), SLOTS,
                                cpu)  # fmt: skip
        self.pages = PagePool(PAGES, 1 + count, cpu)
        generator = torch.Generator().manual_seed(seed)
        for storage in (self.states.storage, self.pages.storage):
            storage.random_(0, 256, generator=generator)
        self.memory = EngineMemory(self.states, self.pages)
        order = list(range(1, count + 1))
        random.Random(seed).shuffle(order)
        self.holder = Holder(SLOT, tuple(order))
