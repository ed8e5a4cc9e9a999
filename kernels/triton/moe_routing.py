"""The choice of experts for each token, and the order in which experts take their tokens, on a GPU;
see baton.kernels.moe. No count of any expert reaches the host: buffers have room for the worst
case."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import sigmoid
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed

_TOKENS = 4  # of one program that routes
_PAIRS = 1024  # that one program looks at together

# What a choice is made by, and weighted by.
_CHOSEN_SOFTMAX = tl.constexpr(0)  # logits; a softmax over the chosen ones
_SOFTMAX = tl.constexpr(1)  # a softmax over all
_SIGMOID = tl.constexpr(2)  # sigmoids, corrected for the choice


def route_softmax_topk(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.route_softmax_topk`; of equal logits the first are chosen."""
    return _route(router_logits, None, top_k, 1, 1, False, 1.0, _CHOSEN_SOFTMAX.value)


def route_softmax_grouped(
    router_logits: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = False,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.route_softmax_grouped`; of equal scores the first are chosen."""
    options = (top_k, groups, top_groups, normalised, factor)
    return _route(router_logits, None, *options, _SOFTMAX.value)


def route_sigmoid_grouped(
    router_logits: Tensor,
    correction: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = True,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.route_sigmoid_grouped`; of equal scores the first are chosen."""
    options = (top_k, groups, top_groups, normalised, factor)
    return _route(router_logits, correction, *options, _SIGMOID.value)


def _route(
    logits: Tensor,
    correction: Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    normalised: bool,
    factor: float,
    scored_by: int,
) -> tuple[Tensor, Tensor]:
    tokens, experts = logits.shape
    weights = logits.new_empty((tokens, top_k), dtype=torch.float32)
    chosen = logits.new_empty((tokens, top_k), dtype=torch.int64)
    if tokens:
        _choose[(triton.cdiv(tokens, _TOKENS),)](
            packed(logits), correction, weights, chosen, factor, logits.stride(0), tokens, experts,
            TOP_K=top_k, GROUPS=groups, TOP_GROUPS=top_groups, NORMALISED=normalised,
            SCORED_BY=scored_by, TOKENS=_TOKENS, BLOCK_K=block(top_k), BLOCK_E=block(experts),
            num_warps=4,
        )  # fmt: skip
    return weights, chosen


@triton.jit
def _take_largest(scores, e, nothing: tl.constexpr):
    """Return the largest of each row, the first expert that has it, and the scores without it."""
    best = tl.max(scores, axis=1)
    expert = tl.min(tl.where(scores == best[:, None], e[None, :], nothing), axis=1)
    rest = tl.where(e[None, :] == expert[:, None], float("-inf"), scores)
    return best, expert, rest


@kernel
def _choose(
    logits,
    correction,
    weights,
    chosen,
    factor,
    stride,
    tokens,
    experts,
    TOP_K: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    NORMALISED: tl.constexpr,
    SCORED_BY: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Choose the experts of some tokens."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    e, place = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    inside = (token < tokens)[:, None] & (e < experts)[None, :]
    at = logits + token[:, None] * stride + e[None, :]
    own = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if SCORED_BY == _SOFTMAX:
        own = tl.where((e < experts)[None, :], own, float("-inf"))
        own = tl.exp(own - tl.max(own, axis=1)[:, None])
        own = own / tl.sum(own, axis=1)[:, None]
    scores = own
    if SCORED_BY == _SIGMOID:
        own = sigmoid(own)
        scores = own + tl.load(correction + e, mask=e < experts, other=0.0)[None, :]
    scores = tl.where((e < experts)[None, :], scores, float("-inf"))
    if TOP_GROUPS < GROUPS:
        group = e // (experts // GROUPS)
        pairs: tl.constexpr = SCORED_BY == _SIGMOID
        scores = _within_groups(scores, group, e, GROUPS, TOP_GROUPS, pairs, TOKENS, BLOCK_E)
    values = tl.zeros((TOKENS, BLOCK_K), tl.float32)
    ids = tl.zeros((TOKENS, BLOCK_K), tl.int64)
    for k in range(TOP_K):
        _, expert, scores = _take_largest(scores, e, BLOCK_E)
        here = (place == k)[None, :]
        value = tl.sum(tl.where(e[None, :] == expert[:, None], own, 0.0), axis=1)
        values = tl.where(here, value[:, None], values)
        ids = tl.where(here, expert[:, None].to(tl.int64), ids)
    real = (place < TOP_K)[None, :]
    if SCORED_BY == _CHOSEN_SOFTMAX:
        values = tl.where(real, values, float("-inf"))
        values = tl.exp(values - tl.max(values, axis=1)[:, None])
        values = values / tl.sum(values, axis=1)[:, None]
    else:
        if NORMALISED:
            values = values / (tl.sum(values, axis=1)[:, None] + 1e-20)
        values = values * factor
    stored = (token < tokens)[:, None] & real
    at = token[:, None] * TOP_K + place[None, :]
    tl.store(weights + at, values, mask=stored)
    tl.store(chosen + at, ids, mask=stored)


@triton.jit
def _within_groups(
    scores,
    group,
    e,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Return the scores of the groups with the largest sums of two, or the largest scores; -inf in
    others."""
    g = tl.arange(0, BLOCK_E)  # as many as experts: there are never more groups
    worth = tl.full((TOKENS, BLOCK_E), float("-inf"), tl.float32)
    for one in range(GROUPS):
        of_group = tl.where((group == one)[None, :], scores, float("-inf"))
        first, _, rest = _take_largest(of_group, e, BLOCK_E)
        if PAIRS:
            first += tl.max(rest, axis=1)
        worth = tl.where((g == one)[None, :], first[:, None], worth)
    kept = tl.zeros((TOKENS, BLOCK_E), tl.int32)
    for _ in range(TOP_GROUPS):
        _, best, worth = _take_largest(worth, g, BLOCK_E)
        kept += (group[None, :] == best[:, None]).to(tl.int32)
    return tl.where(kept > 0, scores, float("-inf"))


@dataclass(frozen=True)
class ExpertAssignment:
    """Pairs of (token, choice), ordered by expert; every expert begins a block of its own.

    rows:    pairs of one block
    pairs:   [blocks * rows] int32, token * top_k + choice; tokens * top_k where there is none
    experts: [blocks] int32, whose block it is; -1: nobody's
    """

    rows: int
    pairs: Tensor
    experts: Tensor


def assign(experts: Tensor, count: int, rows: int) -> ExpertAssignment:
    """Order the pairs of a batch by expert.

    experts: [T, K] int64, below `count`. rows: pairs of one block, a power of two.
    """
    total = experts.numel()
    blocks = triton.cdiv(total, rows) + min(count, total)
    device = experts.device
    counts = torch.empty(count, dtype=torch.int32, device=device)
    pairs = torch.empty(blocks * rows, dtype=torch.int32, device=device)
    owners = torch.empty(blocks, dtype=torch.int32, device=device)
    _count[(count,)](experts, counts, total, BLOCK=_PAIRS, num_warps=4)
    _place[(count,)](
        experts, counts, pairs, owners, total, count, blocks,
        ROWS=rows, BLOCK=_PAIRS, EXPERTS=block(count), num_warps=4,
    )  # fmt: skip
    return ExpertAssignment(rows, pairs, owners)


@kernel
def _count(experts, counts, total, BLOCK: tl.constexpr):
    """Count the pairs of one expert."""
    mine = tl.program_id(0)
    number = tl.zeros((), tl.int32)
    for first in range(0, total, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        expert = tl.load(experts + pair, mask=pair < total, other=-1)
        number += tl.sum((expert == mine).to(tl.int32), axis=0)
    tl.store(counts + mine, number)


@kernel
def _place(
    experts,
    counts,
    pairs,
    owners,
    total,
    count,
    blocks,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Place one expert's pairs in order, and fill the rest of its last block. The last expert also
    marks the blocks that nobody has."""
    mine = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    needed = (tl.load(counts + e, mask=e < count, other=0) + ROWS - 1) // ROWS
    begin = tl.sum(tl.where(e < mine, needed, 0), axis=0)
    end = begin + tl.sum(tl.where(e == mine, needed, 0), axis=0)
    row = tl.arange(0, ROWS)
    placed = tl.zeros((), tl.int32)
    for first in range(0, total, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        expert = tl.load(experts + pair, mask=pair < total, other=-1)
        is_mine = (expert == mine).to(tl.int32)
        rank = placed + tl.cumsum(is_mine, axis=0) - 1
        tl.store(pairs + begin * ROWS + rank, pair, mask=is_mine > 0)
        placed += tl.sum(is_mine, axis=0)
    for one in range(begin, end):
        tl.store(owners + one, mine)
        place = (one - begin) * ROWS + row
        tl.store(pairs + begin * ROWS + place, total + row * 0, mask=place >= placed)
    if mine == count - 1:
        for one in range(end, blocks):
            tl.store(owners + one, -1)
