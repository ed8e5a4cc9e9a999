"""The hit rate of a cache that knows the trace's future."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baton.bench.prefix.budget import PrefixBytes
from baton.bench.prefix.trace import BLOCK, TraceRequest


@dataclass(frozen=True)
class Reuse:
    """A prefix that a request could take from the request that computed it last.

    since, until: numbers of the two requests; the cache would hold the prefix from the first to
    the second. tokens: the prefix's length, a multiple of the grid.
    """

    since: int
    until: int
    tokens: int


def reuses(requests: Sequence[TraceRequest], grid: int) -> list[Reuse]:
    """Return, for each request that has any, the longest prefix on the grid that an earlier request
    has computed too, at most all of its tokens but the last.
    """
    nodes: dict[tuple[int, int], int] = {}  # (node, hash id) -> node: the blocks' prefix tree
    last: dict[tuple[int, int], int] = {}  # (node, depth) -> the last request that went so deep
    found: list[Reuse] = []
    for number, request in enumerate(requests):
        node, path = 0, []
        for hash_id in request.hash_ids:
            node = nodes.setdefault((node, hash_id), len(nodes) + 1)
            path.append(node)
        length = min(request.input_length, BLOCK * len(path))
        points = [(path[(depth - 1) // BLOCK], depth) for depth in range(grid, length + 1, grid)]
        seen = [point for point in points if point in last and point[1] < length]
        if seen:
            found.append(Reuse(last[seen[-1]], number, seen[-1][1]))
        last.update(dict.fromkeys(points, number))
    return found


def hit_rate(requests: Sequence[TraceRequest], grid: int, budget: int, sizes: PrefixBytes) -> float:
    """Return the share of prompt tokens that a cache of `budget` bytes serves if it keeps exactly
    the prefixes that will be used, from one use to the next.

    It chooses greedily, by tokens saved for each byte and request of waiting. Memory flows freely
    between states and KV; prefixes that overlap count their common KV twice. So this is a plan that
    could be followed, not an upper bound.
    """
    total = sum(request.input_length for request in requests)
    used = np.zeros(len(requests))  # bytes, after each request
    saved = 0
    for reuse in sorted(reuses(requests, grid), key=lambda each: _value(each, sizes), reverse=True):
        nbytes = sizes.of(reuse.tokens)
        held = used[reuse.since : reuse.until]
        if held.max() + nbytes <= budget:
            held += nbytes
            saved += reuse.tokens
    return saved / total if total else 0.0


def _value(reuse: Reuse, sizes: PrefixBytes) -> float:
    """Return the tokens saved for each byte and request of waiting."""
    return reuse.tokens / (sizes.of(reuse.tokens) * (reuse.until - reuse.since))
