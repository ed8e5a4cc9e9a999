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
_FEW_PAIRS = 2048  # up to which it is fastest that each expert looks at all of them
_CUT = 128  # of more, the pairs of one program, which compares them with one another
_COLUMNS, _CUTS = 16, 64  # experts and cuts whose counts a program adds up together

_MOST_ROWS = tl.constexpr(256)  # of a block, in pairs

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

    experts: [T, K] int64; one that is not below `count` is nobody's. rows: pairs of one block, a
    power of two, 256 at most
    """
    assert rows <= _MOST_ROWS.value
    total = experts.numel()
    blocks = triton.cdiv(total, rows) + min(count, total)
    device = experts.device
    pairs = torch.empty(blocks * rows, dtype=torch.int32, device=device)
    owners = torch.empty(blocks, dtype=torch.int32, device=device)
    if total > _FEW_PAIRS:
        _order_by_cuts(experts, count, rows, pairs, owners)
    else:
        counts = torch.empty(count, dtype=torch.int32, device=device)
        _count[(count,)](experts, counts, total, BLOCK=_PAIRS, num_warps=4)
        _place[(count,)](
            experts, counts, pairs, owners, total, count, blocks, rows,
            BLOCK=_PAIRS, EXPERTS=block(count), num_warps=4,
        )  # fmt: skip
    return ExpertAssignment(rows, pairs, owners)


def _order_by_cuts(experts: Tensor, count: int, rows: int, pairs: Tensor, owners: Tensor) -> None:
    """Order many pairs: each program counts a cut of them, and later places it behind the cuts
    before. Each pair is read twice, however many experts there are."""
    total, wide = experts.numel(), max(_COLUMNS, block(count))
    cuts = triton.cdiv(total, _CUT)
    counts = torch.empty((cuts, wide), dtype=torch.int32, device=experts.device)
    sums = torch.empty(wide, dtype=torch.int32, device=experts.device)
    _count_cut[(cuts,)](experts, counts, total, count, BLOCK=_CUT, EXPERTS=wide, num_warps=4)
    _add_up[(wide // _COLUMNS,)](
        counts, sums, cuts, EXPERTS=wide, COLUMNS=_COLUMNS, CUTS=_CUTS, num_warps=4
    )
    _place_cut[(cuts + count,)](
        experts, counts, sums, pairs, owners, total, count, owners.shape[0], rows, cuts,
        BLOCK=_CUT, EXPERTS=wide, num_warps=4,
    )  # fmt: skip


@kernel
def _count_cut(experts, counts, total, count, BLOCK: tl.constexpr, EXPERTS: tl.constexpr):
    """Count one cut's pairs of each expert."""
    cut = tl.program_id(0)
    pair = cut * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(experts + pair, mask=pair < total, other=EXPERTS)
    real = (expert >= 0) & (expert < count)
    found = tl.histogram(tl.where(real, expert, 0).to(tl.int32), EXPERTS, mask=real)
    tl.store(counts + cut.to(tl.int64) * EXPERTS + tl.arange(0, EXPERTS), found)


@kernel
def _add_up(counts, sums, parts, EXPERTS: tl.constexpr, COLUMNS: tl.constexpr, CUTS: tl.constexpr):
    """Replace some experts' counts of each cut by the sums of those before it. parts: cuts"""
    expert = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    before = tl.zeros((COLUMNS,), tl.int32)
    for first in range(0, parts, CUTS):
        cut = first + tl.arange(0, CUTS)
        at = counts + cut.to(tl.int64)[:, None] * EXPERTS + expert[None, :]
        inside = (cut < parts)[:, None]
        own = tl.load(at, mask=inside, other=0)
        tl.store(at, before[None, :] + tl.cumsum(own, axis=0) - own, mask=inside)
        before += tl.sum(own, axis=0)
    tl.store(sums + expert, before)


@kernel
def _place_cut(
    experts,
    counts,
    sums,
    pairs,
    owners,
    total,
    count,
    blocks,
    number,
    parts,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Place one cut's pairs, in order. number: pairs of one block. parts: cuts; behind their
    programs come the experts', which fill the rest of their last blocks."""
    which = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    held = tl.load(sums + e)
    needed = (held + number - 1) // number
    ends = tl.cumsum(needed, axis=0)
    if which < parts:
        i = tl.arange(0, BLOCK)
        pair = which * BLOCK + i
        expert = tl.load(experts + pair, mask=pair < total, other=EXPERTS)
        real = (expert >= 0) & (expert < count)
        own = tl.where(real, expert, 0).to(tl.int32)
        other = tl.load(experts + which * BLOCK + i, mask=pair < total, other=EXPERTS)
        same = (other[None, :] == expert[:, None]) & (i[None, :] < i[:, None])
        rank = tl.sum(same.to(tl.int32), axis=1)
        before = tl.load(counts + which.to(tl.int64) * EXPERTS + own, mask=real, other=0)
        first = tl.gather(ends - needed, own, 0) * number
        tl.store(pairs + first + before + rank, pair, mask=real)
    else:
        mine = which - parts
        end = tl.sum(tl.where(e == mine, ends, 0), axis=0)
        begin = end - tl.sum(tl.where(e == mine, needed, 0), axis=0)
        placed = tl.sum(tl.where(e == mine, held, 0), axis=0)
        _fill(pairs, owners, total, count, blocks, mine, begin, end, placed, number)


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
    number,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Place one expert's pairs in order, and fill the rest of its last block. number: of pairs of
    one block."""
    mine = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    needed = (tl.load(counts + e, mask=e < count, other=0) + number - 1) // number
    begin = tl.sum(tl.where(e < mine, needed, 0), axis=0)
    end = begin + tl.sum(tl.where(e == mine, needed, 0), axis=0)
    placed = tl.zeros((), tl.int32)
    for first in range(0, total, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        expert = tl.load(experts + pair, mask=pair < total, other=-1)
        is_mine = (expert == mine).to(tl.int32)
        rank = placed + tl.cumsum(is_mine, axis=0) - 1
        tl.store(pairs + begin * number + rank, pair, mask=is_mine > 0)
        placed += tl.sum(is_mine, axis=0)
    _fill(pairs, owners, total, count, blocks, mine, begin, end, placed, number)


@triton.jit
def _fill(pairs, owners, total, count, blocks, mine, begin, end, placed, number):
    """Mark one expert's blocks, `begin` to `end`, and fill the rest of the last, behind `placed`
    pairs. The last expert also marks the blocks that nobody has."""
    row = tl.arange(0, _MOST_ROWS)
    for one in range(begin, end):
        tl.store(owners + one, mine)
        place = (one - begin) * number + row
        unused = (place >= placed) & (row < number)
        tl.store(pairs + begin * number + place, total + row * 0, mask=unused)
    if mine == count - 1:
        for one in range(end, blocks):
            tl.store(owners + one, -1)
