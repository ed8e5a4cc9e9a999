"""Slots and token runs as bytes: what is named moves, and nothing else does."""

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.state_copy import (
    clear_slots,
    copy_slots,
    kv_pack,
    kv_unpack,
    slot_pack,
    slot_unpack,
)


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("slot_bytes", [1, 10, 256])
def test_a_chain_of_copies_reads_every_source_before_it_writes(slot_bytes):
    seeded(slot_bytes)
    pool = random_bytes(6, slot_bytes)
    before = pool.clone()
    copy_slots(pool, torch.tensor([1, 2, 3]), torch.tensor([2, 3, 1]))
    assert torch.equal(pool, before[[0, 3, 1, 2, 4, 5]])


@pytest.mark.parametrize("slot_bytes", [3, 64])
def test_clearing_zeroes_the_named_slots_only(slot_bytes):
    seeded(slot_bytes)
    pool = random_bytes(5, slot_bytes)
    before = pool.clone()
    clear_slots(pool, torch.tensor([4, 2]))
    assert not pool[[2, 4]].any()
    assert torch.equal(pool[[0, 1, 3]], before[[0, 1, 3]])


@pytest.mark.parametrize("slot_bytes, offset", [(24, 0), (24, 5), (7, 1)])
def test_slots_survive_the_wire_between_differently_aligned_buffers(slot_bytes, offset):
    seeded(offset)
    pool, other = random_bytes(6, slot_bytes), random_bytes(6, slot_bytes)
    kept = other.clone()
    wire = random_bytes(2 * slot_bytes + offset)
    wire[offset:] = slot_pack(pool, torch.tensor([5, 1])).flatten()
    slot_unpack(wire[offset:].view(2, slot_bytes), other, torch.tensor([2, 3]))
    assert torch.equal(other[[2, 3]], pool[[5, 1]])
    assert torch.equal(other[[0, 1, 4, 5]], kept[[0, 1, 4, 5]])


@pytest.mark.parametrize("token_bytes", [5, 16])
@pytest.mark.parametrize(
    "first, count",
    [(0, 1), (0, 4), (0, 8), (3, 1), (3, 2), (1, 2), (2, 9), (0, 9), (3, 13), (1, 3), (1, 7)],
)
def test_a_run_of_tokens_is_packed_and_unpacked_to_the_token(first, count, token_bytes):
    rng = seeded(100 * first + count)
    page_size, planes = 4, 3
    ids = torch.tensor(rng.sample(range(1, 9), -(-(first + count) // page_size)))
    # A range of layers is a strided slice of the planes.
    pages = random_bytes(9, planes + 2, page_size, token_bytes)[:, 1 : 1 + planes]
    places = [(ids[p // page_size], p % page_size) for p in range(first, first + count)]
    expected = torch.stack([pages[page, :, offset] for page, offset in places], dim=1)
    wire = kv_pack(pages, ids, first, count)
    assert torch.equal(wire, expected)

    target = random_bytes(9, planes, page_size, token_bytes)
    wanted = target.clone()
    for run, (page, offset) in enumerate(places):
        wanted[page, :, offset] = expected[:, run]
    kv_unpack(wire, target, ids, first, count)
    assert torch.equal(target, wanted)


@pytest.mark.parametrize("first, count, pages", [(0, 5, 1), (0, 4, 2), (4, 1, 2), (0, 0, 0)])
def test_a_run_that_its_pages_do_not_hold_is_refused(first, count, pages):
    pool = random_bytes(4, 2, 4, 8)
    with pytest.raises(ValueError, match=f"a run of {count} tokens from place {first}"):
        kv_pack(pool, torch.arange(pages), first, count)
