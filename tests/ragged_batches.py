"""Random ragged batches on poisoned pools, shared by the kernel tests."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.chunks import RaggedRows, SnapshotPlan


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of random lengths after random prefixes; every slot is distinct and none is 0.

    read_slots of rows without a prefix point at a slot that only holds poison.
    """

    lengths: list[int]
    prefix_lens_host: list[int]
    cu_seqlens_host: list[int]
    cu_seqlens: Tensor  # [B + 1] int64
    read_slots: Tensor  # [B] int64
    write_slots: Tensor  # [B] int64
    has_initial: Tensor  # [B] bool
    spare_slots: list[int]  # untouched so far: for snapshots
    num_slots: int

    @property
    def tokens(self) -> int:
        return self.cu_seqlens_host[-1]

    @property
    def rows(self) -> RaggedRows:
        return RaggedRows(
            self.cu_seqlens,
            tuple(self.cu_seqlens_host),
            tuple(self.prefix_lens_host),
            self.read_slots,
            self.write_slots,
            self.has_initial,
        )


def seeded(seed: int) -> random.Random:
    """A generator of host values; torch is seeded alike. A failing test names its seed."""
    torch.manual_seed(seed)
    return random.Random(seed)


def ragged_batch(lengths: list[int], prefixes: list[int], rng: random.Random) -> RaggedBatch:
    """Rows that resume from their own slot, from another one (copy on write), or from nothing."""
    batch = len(lengths)
    num_slots = 5 * batch + 4
    slots = rng.sample(range(1, num_slots), num_slots - 1)
    write = [slots.pop() for _ in range(batch)]
    read = [slot if rng.random() < 0.4 else slots.pop() for slot in write]
    cu_seqlens_host = [0]
    for length in lengths:
        cu_seqlens_host.append(cu_seqlens_host[-1] + length)
    return RaggedBatch(
        lengths=lengths,
        prefix_lens_host=prefixes,
        cu_seqlens_host=cu_seqlens_host,
        cu_seqlens=torch.tensor(cu_seqlens_host),
        read_slots=torch.tensor(read),
        write_slots=torch.tensor(write),
        has_initial=torch.tensor([prefix > 0 for prefix in prefixes]),
        spare_slots=slots,
        num_slots=num_slots,
    )


def cloned(pools: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return copies of a layer's two pools."""
    first, second = (pool.clone() for pool in pools)
    return first, second


def poisoned_pool(batch: RaggedBatch, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A strided view [slots, *shape] of a wider slot-major pool: NaN but where a row may read."""
    size = math.prod(shape)
    pool = torch.full((batch.num_slots, size + 7), torch.nan, dtype=dtype)
    view = pool[:, 3 : 3 + size].unflatten(1, shape)
    for row, slot in enumerate(batch.read_slots.tolist()):
        if batch.has_initial[row]:
            view[slot] = torch.randn(shape).to(dtype)
    return view


def random_snapshots(batch: RaggedBatch, grid: int, rng: random.Random) -> SnapshotPlan:
    """Up to three snapshots: on the grid anywhere inside a row, or at a row's end."""
    choices = []
    for row, (prefix, length) in enumerate(zip(batch.prefix_lens_host, batch.lengths, strict=True)):
        choices += [(row, d) for d in range(prefix + 1, prefix + length + 1) if d % grid == 0]
        if length > 0:
            choices.append((row, prefix + length))
    chosen = rng.sample(sorted(set(choices)), min(3, len(set(choices))))
    return SnapshotPlan(
        rows=tuple(row for row, _ in chosen),
        depths=tuple(depth for _, depth in chosen),
        slots=tuple(batch.spare_slots[: len(chosen)]),
    )


def assert_pools_match(pool: Tensor, expected: Tensor, atol: float, rtol: float) -> None:
    """Written slots are close to the reference's; all others, poison too, are as they were."""
    assert torch.equal(pool.isnan(), expected.isnan()), "a slot holds NaN where it should not"
    torch.testing.assert_close(pool, expected, atol=atol, rtol=rtol, equal_nan=True)
