"""Copies of slots: what is named moves, and nothing else does."""

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.state_copy import copy_slots


@pytest.mark.parametrize("slot_bytes", [1, 10, 256])
def test_a_chain_of_copies_reads_every_source_before_it_writes(slot_bytes):
    seeded(slot_bytes)
    pool = torch.randint(0, 256, (6, slot_bytes), dtype=torch.uint8)
    before = pool.clone()
    copy_slots(pool, torch.tensor([1, 2, 3]), torch.tensor([2, 3, 1]))
    assert torch.equal(pool, before[[0, 3, 1, 2, 4, 5]])


@pytest.mark.parametrize("slot_bytes, offset", [(24, 0), (24, 5), (7, 1), (6, 2)])
def test_a_pool_may_begin_at_any_byte(slot_bytes, offset):
    seeded(offset)
    memory = torch.randint(0, 256, (offset + 4 * slot_bytes,), dtype=torch.uint8)
    pool = memory[offset:].view(4, slot_bytes)
    before = memory.clone()
    copy_slots(pool, torch.tensor([3]), torch.tensor([1]))
    assert torch.equal(memory[:offset], before[:offset])
    assert torch.equal(pool, before[offset:].view(4, slot_bytes)[[0, 3, 2, 3]])
