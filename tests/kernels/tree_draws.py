"""Trees of tests: their links, drawn at random."""

import random

import torch
from torch import Tensor


def random_nodes(rows: int, tokens: int, rng: random.Random) -> Tensor:
    """[rows, tokens] int64: links of trees, of chains too, as of `Kernels.gated_conv_verify`."""
    found = []
    for _ in range(rows):
        nodes, near = [1], rng.choice([1, 2, 16])
        for node in range(1, tokens):
            parent = rng.randrange(max(0, node - near), node)
            nodes.append(nodes[parent] | 1 << node)
        found.append(nodes)
    return torch.tensor(found)


def paths_of(nodes: list[int]) -> list[list[int]]:
    """The nodes from the first to each, in order."""
    return [[node for node in range(len(nodes)) if path >> node & 1] for path in nodes]
