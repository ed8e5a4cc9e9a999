"""The links of trees on a GPU: which tokens of its row a node follows, itself being the last.

Bit i of a node's links is set where it follows node i, or is it; see `Kernels.gated_conv_verify`.
"""

import triton
import triton.language as tl


@triton.jit
def ancestor(path, depth, LINKS: tl.constexpr):
    """Return the node of a path at each depth, 0 or more; the depth itself where the path is not so
    long. path: int64, links of a node, of which LINKS bits are looked at. depth: int32, any shape
    """
    node, deep = depth, 0
    for link in range(LINKS):
        there = ((path >> link) & 1).to(tl.int32)
        node = tl.where((depth == deep) & (there != 0), link, node)
        deep += there
    return node


@triton.jit
def nodes_of(path, LINKS: tl.constexpr):
    """Return how many nodes a path has, int32. path: as in `ancestor`"""
    count = 0
    for link in range(LINKS):
        count += ((path >> link) & 1).to(tl.int32)
    return count


@triton.jit
def is_last(nodes, node, tokens):
    """Return true if no node follows `node`. nodes: the links of the row's `tokens` nodes"""
    followed = 0
    for other in range(node + 1, tokens):
        followed += ((tl.load(nodes + other) >> node) & 1).to(tl.int32)
    return followed == 0
