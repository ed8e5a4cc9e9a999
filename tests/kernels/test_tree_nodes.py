"""Tokens of a row that are a tree: each has the bits of a row of its own path alone."""

import random
from dataclasses import replace

import pytest
import torch
from kernels.test_verify import KINDS, ROWS, bits, kernels, random_case
from kernels.tree_draws import paths_of, random_nodes
from torch import Tensor

from baton.kernels.base import Kernels
from baton.kernels.native.recorder import Native
from baton.kernels.native_kernels import NativeKernels
from baton.kernels.torch_kernels import TORCH

assert kernels  # a fixture


def assert_same(found: Tensor, wanted: Tensor, kernels: Kernels) -> None:
    """The bits of native kernels do not depend on the batch, nor those of interpreted ones; torch's
    may, and a GPU's compiler may contract the same sums otherwise."""
    if kernels is TORCH or found.is_cuda:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeat", range(3))
def test_a_node_of_a_mixer_follows_its_parent_and_no_state_is_written(
    kind: str, repeat: int, kernels: Kernels, rng: random.Random
) -> None:
    tokens = rng.choice([2, 5, 8, 16])
    case = random_case(kind, kernels, tokens, rng.choice([torch.float32, torch.bfloat16]), rng)
    nodes = random_nodes(ROWS, tokens, rng)
    pools = case.mixer.clone()
    kept = torch.full((ROWS * tokens, case.mixer.kept_width), torch.nan, dtype=case.mixer.x.dtype)
    given = case.mixer.x, pools, case.read, case.has_initial, kept
    y = case.mixer.verify(*given, nodes.flatten()).view(ROWS, tokens, -1).clone()
    for before, after in zip(case.mixer.pools, pools, strict=True):
        assert torch.equal(bits(before), bits(after))
    x = case.mixer.x.view(ROWS, tokens, -1)
    for row, paths in enumerate(map(paths_of, nodes.tolist())):
        for node, path in enumerate(paths):
            alone = replace(case.mixer, x=x[row, path].contiguous())
            initial = None if case.has_initial is None else case.has_initial[row : row + 1]
            slots = case.read[row : row + 1]
            kept_alone = torch.empty(len(path), case.mixer.kept_width, dtype=x.dtype)
            wanted = alone.verify(alone.x, case.mixer.clone(), slots, initial, kept_alone)
            assert_same(y[row, node], wanted[-1], kernels)
            assert torch.equal(kept.view(ROWS, tokens, -1)[row, path], kept_alone)


@pytest.mark.parametrize("latent", [False, True], ids=["heads", "latents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("repeat", range(3))
def test_a_node_attends_to_its_ancestors_as_if_they_lay_one_after_another(
    latent: bool, dtype: torch.dtype, repeat: int, kernels: Kernels, rng: random.Random
) -> None:
    size, width, heads = rng.choice([3, 8, 16]), rng.choice([16, 32, 64]), rng.choice([2, 5, 12])
    tree = random_nodes(1, 16, rng)[0].tolist()
    lengths = [rng.choice([0, 1, 7, 40, 300]) for _ in tree]  # tokens before node 0
    depths = [node.bit_count() for node in tree]
    rows = len(tree)
    most = -(-(max(lengths) + 16) // size)
    tables = 1 + torch.randperm(rows * most).view(rows, most).int()
    page = (1 + rows * most, size, width) if latent else (1 + rows * most, size, 2, width)
    pools = [torch.randn(page).to(dtype) for _ in range(1 if latent else 2)]
    q = torch.randn(rows, heads * 2, width)
    lens = torch.tensor([a + b for a, b in zip(lengths, depths, strict=True)])
    host = [a + 16 for a in lengths]

    def attended(nodes: Tensor | None) -> Tensor:
        own, pool = torch.arange(rows), pools[0]
        if latent:
            return kernels.mla_decode(
                q[:, None], pool, tables, own, lens, host, width - 4, 0.3, nodes=nodes
            )
        return kernels.paged_attn_decode(
            q, pool, pools[1], tables, own, lens, host, 0.3, nodes=nodes
        )

    found = attended(torch.tensor(tree)).clone()
    for row, (first, path) in enumerate(zip(lengths, paths_of(tree), strict=True)):
        for pool in pools:
            table = tables[row].tolist()
            places = [first + node for node in path]
            values = [pool[table[at // size], at % size].clone() for at in places]
            for position, value in enumerate(values, first):
                pool[table[position // size], position % size] = value
            for position in range(first + len(path), most * size):
                pool[table[position // size], position % size] = torch.nan
    assert_same(found, attended(None), kernels)


@pytest.mark.parametrize("repeat", range(10))
def test_both_guess_the_same_trees(native: Native, rng: random.Random, repeat: int) -> None:
    length, letters = rng.choice([1, 9, 200]), rng.choice([1, 2, 4, 30])
    tokens = torch.tensor(rng.choices(range(letters), k=3 * length)).view(3, length).int()
    rows = torch.tensor([rng.randrange(3) for _ in range(4)])
    ends = torch.tensor([rng.randint(1, length) for _ in rows])
    shape = rng.randint(1, 15), rng.randint(1, 4), rng.randint(1, 15)
    given = tokens, rows, ends, rng.choice([5, 64, 4096]), (2, 4), *shape
    wanted = TORCH.guess_tree(*given)
    for one, other in zip(NativeKernels(native).guess_tree(*given), wanted, strict=True):
        assert torch.equal(one, other)
