"""State that P ranks hold, on D ranks: every byte once, and the bytes that D ranks would have."""

import json
import random
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle.specs import SPECS
from torch import Tensor
from transfer.rank_pools import Layout, divides, page_layouts, slot_layouts

from baton.core.errors import ConfigError
from baton.engine.layout.layout import (
    AttentionShape,
    PageLayout,
    RecurrentShape,
    SlotLayout,
)
from baton.engine.layout.shards import SubBlock
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import Mixer, ModelConfig
from baton.transfer.memory.coverage import Coverage
from baton.transfer.memory.reshard import Move, reshard

SIZES = (1, 2, 3, 4, 6, 8, 12)
PAGE = 4
FAMILIES = sorted({spec.model_type for spec in SPECS.values()})

sizes = st.sampled_from(SIZES)
layouts = slot_layouts | page_layouts


def block_bytes(layout: Layout) -> int:
    return layout.slot_bytes if isinstance(layout, SlotLayout) else layout.page_bytes


def covered(layout: Layout, moves: tuple[Move, ...], rank: int) -> list[tuple[int, int]]:
    """The runs of that destination's bytes that are written. Fails where two writes overlap."""
    coverage = Coverage()
    for move in moves:
        if move.destination.rank == rank:
            for run in move.runs():
                start, end = run.destination_offset, run.destination_offset + run.nbytes
                assert coverage.overlap(start, end) is None
                coverage.add(start, end)
    return coverage._runs


@given(layouts, sizes, sizes)
def test_every_destination_is_written_whole_and_once(layout: Layout, p: int, d: int) -> None:
    if not (divides(layout, p) and divides(layout, d)):
        with pytest.raises(ConfigError):
            reshard(layout, p, d)
        return
    moves = reshard(layout, p, d)
    for rank in range(d):
        wanted = Coverage()
        for component in layout.shard(rank, d).components:
            wanted.add(component.offset, component.offset + component.nbytes)
        assert covered(layout, moves, rank) == wanted._runs
    for move in moves:
        held = layout.shard(move.source.rank, p).components
        for run in move.runs():
            assert any(c.offset <= run.source_offset < c.offset + c.nbytes for c in held)
            assert run.source_offset + run.nbytes <= held[-1].offset + held[-1].nbytes


@given(layouts, sizes)
def test_equal_sizes_need_no_reshaping(layout: Layout, size: int) -> None:
    if not divides(layout, size):
        return
    for move in reshard(layout, size, size):
        assert (move.source.offset, move.source.stride) == (
            move.destination.offset,
            move.destination.stride,
        )


@given(layouts, sizes, sizes, st.data())
def test_some_tokens_of_a_page_are_those_rows_of_the_whole(
    layout: Layout, p: int, d: int, data: st.DataObject
) -> None:
    if not (isinstance(layout, PageLayout) and divides(layout, p) and divides(layout, d)):
        return
    start = data.draw(st.integers(0, layout.page_size))
    end = data.draw(st.integers(start, layout.page_size))
    moves = reshard(layout, p, d)
    moved = [sum(run.nbytes for run in move.runs(start, end)) for move in moves]
    assert moved == [(end - start) * move.nbytes for move in moves]


def test_copies_of_a_head_share_the_sending() -> None:
    layout = PageLayout((AttentionShape(2, 8),), PAGE, torch.float32)
    senders = [move.source.rank for move in reshard(layout, 8, 8) if move.rows]
    assert set(senders) == set(range(8))
    grown = [(m.source.rank, m.destination.rank) for m in reshard(layout, 2, 4)]
    assert set(grown) == {(0, 0), (0, 1), (1, 2), (1, 3)}


@pytest.mark.parametrize(
    ("block", "size", "message"),
    [
        (SubBlock("Mamba heads", 10, 4), 4,
         r"Mamba heads \(10\) cannot be divided among 4 ranks: expected a multiple of 4"),
        (SubBlock("KV heads", 3, shared=True), 4,
         r"KV heads \(3\) .* 4 ranks: expected a multiple of 4, or a divisor of 4"),
        (SubBlock("Mamba heads", 2, 4), 4, r"Mamba heads \(2\) .* 4 ranks"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_names_both_numbers(
    block: SubBlock, size: int, message: str
) -> None:
    shape = RecurrentShape((block.units * block.width, 3), None, (block,))
    with pytest.raises(ConfigError, match=message):
        reshard(SlotLayout((shape,), torch.float32, torch.float32), 1, size)


# End to end, with buffers for ranks: what they hold is cut out of whole tensors by torch alone.


def whole_tensors(layout: Layout, generator: torch.Generator) -> list[Tensor]:
    """One request's state: random bytes, each component in its shape and dtype."""
    return [
        torch.randint(0, 256, (c.nbytes,), dtype=torch.uint8, generator=generator)
        .view(c.dtype)
        .view(c.shape)
        for c in layout.components
    ]


def own_part(full: Tensor, dim: int, sizes: list[tuple[int, int]], rank: int, size: int) -> Tensor:
    """Rank's heads of each of the tensors that are fused along `dim`; sizes: (heads, width)."""
    cut = []
    for part, (count, _) in zip(
        full.split([count * width for count, width in sizes], dim), sizes, strict=True
    ):
        copies = part
        if count < size:  # each rank wants one head: give every head to its share of the ranks
            per_head = part.chunk(count, dim)
            copies = torch.cat([h for h in per_head for _ in range(size // count)], dim)
        cut.append(copies.chunk(size, dim)[rank])
    return torch.cat(cut, dim)


def filled(layout: Layout, tensors: list[Tensor]) -> Tensor:
    """A slot or page, poisoned between its tensors: [block bytes] uint8."""
    block = torch.full((block_bytes(layout),), 0xA5, dtype=torch.uint8)
    for component, tensor in zip(layout.components, tensors, strict=True):
        assert tuple(tensor.shape) == component.shape
        raw = tensor.contiguous().view(-1).view(torch.uint8)
        block[component.offset : component.offset + component.nbytes] = raw
    return block


def cuts(config: ModelConfig, layout: Layout) -> list[tuple[int, list[tuple[int, int]]]]:
    """(axis, (heads, width) of what is fused on it) of each component."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for component in layout.components:
        if component.name in ("k", "v"):
            found.append((1, [(component.shape[1], 1)]))
        elif component.name == "latent":
            found.append((1, [(1, component.shape[1])]))  # one for all heads
        elif component.name == "ssm":
            found.append((0, [(component.shape[0], 1)]))
        elif config.recurrent[component.layer].ssm is None:
            found.append((0, [(component.shape[0], 1)]))
        elif Mixer.MAMBA2 not in config.mixers:  # delta nets: [q | k | v], states K x V
            n, key_dim, value_dim = config.recurrent[component.layer].ssm or (0, 0, 0)
            keys = (component.shape[0] - n * value_dim) // (2 * key_dim)
            found.append((0, [(keys, key_dim), (keys, key_dim), (n, value_dim)]))
        else:
            n, head_dim, d_state = config.recurrent[component.layer].ssm or (0, 0, 0)
            g = (component.shape[0] - n * head_dim) // (2 * d_state)
            found.append((0, [(n, head_dim), (g, d_state), (g, d_state)]))
    return found


def sharded(
    config: ModelConfig, layout: Layout, tensors: list[Tensor], rank: int, size: int
) -> Tensor:
    own = [
        own_part(tensor, axis, sizes, rank, size)
        for tensor, (axis, sizes) in zip(tensors, cuts(config, layout), strict=True)
    ]
    return filled(layout.shard(rank, size), own)


@pytest.mark.parametrize("family", FAMILIES)
def test_moved_shards_are_those_that_a_direct_division_gives(family: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    pairs = 0
    for spec in SPECS.values():
        if spec.model_type != family:
            continue
        (tmp_path / "config.json").write_text(json.dumps(spec.config | {"model_type": family}))
        config = read_config(tmp_path, torch.bfloat16, torch.float32)
        slots = SlotLayout(config.recurrent, config.conv_dtype, config.ssm_dtype)
        for layout in (slots, PageLayout(config.attention, PAGE, config.dtype)):
            pairs += moved_as_divided(config, layout, generator)
    assert pairs > 1, "no checkpoint of the family can be divided"


def moved_as_divided(config: ModelConfig, layout: Layout, generator: torch.Generator) -> int:
    """Compares all pairs of sizes that the layout allows; returns how many."""
    tensors = whole_tensors(layout, generator)
    expected = {
        size: [sharded(config, layout, tensors, rank, size) for rank in range(size)]
        for size in SIZES
        if divides(layout, size)
    }
    for p, d in product(expected, expected):
        moved = [torch.full_like(block, 0xA5) for block in expected[d]]
        for move in reshard(layout, p, d):
            source, destination = expected[p][move.source.rank], moved[move.destination.rank]
            for run in move.runs():
                at, to, n = run.source_offset, run.destination_offset, run.nbytes
                destination[to : to + n] = source[at : at + n]
        for rank in range(d):
            assert torch.equal(moved[rank], expected[d][rank]), f"{p} to rank {rank} of {d}"
    return len(expected) ** 2
