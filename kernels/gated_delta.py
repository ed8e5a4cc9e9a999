"""The gated delta rule over ragged rows, and its one-token update (Yang et al., 2024,
arXiv:2412.06464), with one decay a head or, as in Kimi Delta Attention (arXiv:2510.26692), one a
key channel.

For every value head, with unit keys k, unit queries q times K ** -0.5, and decays exp(g) at most 1:

    S'_t = diag(exp(g_t)) S_{t-1}                     state [K, V]
    S_t  = S'_t + beta_t k_t (v_t - S'_t^T k_t)^T
    o_t  = S_t^T q_t

Rows are cut into chunks (see chunks.py). Inside a chunk the corrections v_t - S'_t^T k_t depend on
one another: a triangular system, solved once for what the chunk's own values give and once for what
the state that enters it gives (the WY form of its product of Householder-like matrices). Only what
depends on that state goes chunk by chunk. All of it is float32; a decay is the exponential of one
difference of cumulative logarithms, so it never exceeds one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.chunks import ChunkIndex, ChunkTile, SnapshotPlan, chunk_index

# Tokens of a chunk, in every model: what the authors' own kernels use.
CHUNK = 64
# Added to the squared length of a query or key before its root is taken.
_UNIT_EPS = 1e-6
# Channelwise decays are products of matrices between blocks of so many tokens, and taken pair by
# pair within one: the fewest exponentials for chunks of 64.
_BLOCK = 8


@dataclass(frozen=True)
class _Terms:
    """The terms of one chunk of L tokens, or of a tile of m such chunks, that do not need the state
    S [Hv, K, V] that enters it; all float32, [Hv, ...] or [m, Hv, ...].

    The corrections are `values - keys S`, the outputs `q S + scores corrections`, and the state
    becomes `decay S + written^T corrections`.
    """

    q_and_keys: Tensor  # [2 L, K]: two products with the state are one
    values: Tensor  # [L, V]
    scores: Tensor  # [L, L]
    written: Tensor  # [L, K]
    decay: Tensor  # [K or 1, 1]

    def chunk(self, place: int) -> "_Terms":
        """Return the terms of one chunk of a tile."""
        parts = (self.q_and_keys, self.values, self.scores, self.written, self.decay)
        return _Terms(*(part[place] for part in parts))

    def pass_through(self, state: Tensor) -> Tensor:
        """Return one chunk's outputs [Hv, L, V]; advance `state` [Hv, K, V] in place."""
        L = self.values.shape[1]
        read = torch.bmm(self.q_and_keys, state)
        corrections = self.values - read[:, L:]
        state.mul_(self.decay).baddbmm_(self.written.transpose(1, 2), corrections)
        return torch.baddbmm(read[:, :L], self.scores, corrections)


def gated_delta_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
    index: ChunkIndex | None = None,
    chunk_size: int = CHUNK,
) -> Tensor:
    """Apply the rule to packed rows; leave each row's final state, and its snapshots, in the pool.

    q, k:     [T, Hk, K] float, of any length: they are brought to length one here
    v:        [T, Hv, V] float; value head h uses key head h // (Hv // Hk)
    g:        [T, Hv] float32, log decays, at most 0; or [T, Hv, K]: one a key channel (Hv = Hk)
    beta:     [T, Hv] float32, from 0 to 1
    cu_seqlens_host: [B + 1], packed token where each row begins
    prefix_lens_host: [B], absolute depth of each row's first token
    pool:     [slots, Hv, K, V] float, strided; written in place, in its own dtype
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool; False starts from zeros, whatever the read slot holds
    snapshots: states to keep at multiples of `chunk_size` or at a row's end, in slots of their own
    index:    chunk_index(...) of this batch, where the caller has it; it holds the snapshots
    returns   [T, Hv, V], dtype of v
    """
    if index is None:
        lens = (cu_seqlens_host, prefix_lens_host)
        index = chunk_index(*lens, chunk_size, snapshots).on(v.device)
    plan = index.plan
    terms: dict[int, _Terms] = {}
    for tile in index.tiles:
        whole = _without_state(q, k, v, g, beta, tile)
        terms |= {chunk: whole.chunk(place) for place, chunk in enumerate(tile.chunks_host)}
    starts = has_initial[index.row_order, None, None, None]
    initial = pool.index_select(0, read_slots[index.row_order]).float()
    states = torch.where(starts, initial, 0.0)
    kept = states.new_empty((len(index.snapshot_sources_host), *states.shape[1:]))
    o = torch.empty_like(v)
    # Chunk by chunk: a chunk's matrices have the same shapes whatever else is in the batch.
    ranks = [rank for width in plan.widths for rank in range(width)]
    for chunk, rank in enumerate(ranks):
        for place, source in enumerate(index.snapshot_sources_host):
            if source == chunk:
                kept[place] = states[rank]
        start, length = plan.starts[chunk], plan.lengths[chunk]
        outputs = terms.pop(chunk).pass_through(states[rank])
        o[start : start + length] = outputs[:, :length].transpose(0, 1)
    for place, source in enumerate(index.snapshot_sources_host):
        if source >= len(ranks):
            kept[place] = states[source - len(ranks)]
    pool.index_copy_(0, write_slots[index.row_order], states.to(pool.dtype))
    pool.index_copy_(0, index.snapshot_slots, kept.to(pool.dtype))
    return o


def _without_state(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, tile: ChunkTile
) -> _Terms:
    """Compute the terms of a tile's m chunks."""
    K, V = k.shape[-1], v.shape[-1]

    def gathered(x: Tensor) -> Tensor:
        """Gather a tile: [T, H, ...] -> [m, H, L, ...] float32."""
        rows = x.index_select(0, tile.tokens).float()
        return rows.view(*tile.valid.shape, *x.shape[1:]).transpose(1, 2).contiguous()

    q_tile, k_tile, values = unit(gathered(q)).mul_(K**-0.5), unit(gathered(k)), gathered(v)
    counted = tile.valid[:, None, :]  # a padded token neither decays nor writes
    rate = torch.where(counted, gathered(beta), 0.0)[..., None]
    logs = gathered(g if g.dim() == 3 else g[..., None])  # [m, Hv, L, K or 1]
    # In float64 until they are subtracted: the sums grow, their differences stay small.
    logs = torch.where(counted[..., None], logs, 0.0).double().cumsum(dim=2)
    q_scores, k_scores = _scores(q_tile, k_tile, logs)
    each = v.shape[1] // k.shape[1]
    q_tile, k_tile = _each_head(q_tile, each), _each_head(k_tile, each)
    entry = logs.float().exp_()
    sides = torch.cat((values * rate, k_tile * (entry * rate)), dim=-1)
    solved = torch.linalg.solve_triangular(
        k_scores.mul_(rate), sides, upper=False, unitriangular=True
    )
    return _Terms(
        q_and_keys=torch.cat((q_tile * entry, solved[..., V:]), dim=2),
        values=solved[..., :V],
        scores=q_scores.tril_(),
        written=k_tile * _decay(logs[:, :, -1:] - logs),
        decay=entry[:, :, -1, :, None],
    )


def _scores(q: Tensor, k: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply each token's query, and its key, with each key before it, decayed between the two.

    q, k: [m, Hk, L, K] float32; logs: [m, Hv, L, K or 1] float64; returns two [m, Hv, L, L]
    float32. What lies above the diagonal is unspecified.
    """
    if logs.shape[-1] > 1:
        scores = _channelwise_scores(torch.stack((q, k)), k, logs)
        return scores[0], scores[1]
    m, heads, L, _ = logs.shape
    decay = _decay(logs - logs.transpose(2, 3)).view(m, k.shape[1], -1, L, L)
    products = (torch.matmul(x, k.transpose(2, 3))[:, :, None] * decay for x in (q, k))
    q_scores, k_scores = (product.view(m, heads, L, L) for product in products)
    return q_scores, k_scores


def _channelwise_scores(x: Tensor, k: Tensor, logs: Tensor) -> Tensor:
    """Compute decayed products where each channel has a decay: x [n, m, H, L, K], k [m, H, L, K]
    float32, logs [m, H, L, K] float64 -> [n, m, H, L, L] float32."""
    L = k.shape[2]
    scores = x.new_zeros((*x.shape[:4], L))
    for first in range(0, L, _BLOCK):
        block = slice(first, min(first + _BLOCK, L))
        own = logs[:, :, block]
        # Between blocks, both sides are decayed to the block's first token: neither factor can
        # overflow, as exp(-logs) would.
        since = x[:, :, :, block] * _decay(own - own[:, :, :1])
        until = k[:, :, :first] * _decay(own[:, :, :1] - logs[:, :, :first])
        scores[..., block, :first] = torch.matmul(since, until.transpose(2, 3))
        pairs = _decay(own[:, :, :, None] - own[:, :, None]) * k[:, :, None, block]
        scores[..., block, block] = (x[:, :, :, block, None] * pairs).sum(dim=-1)
    return scores


def _decay(log: Tensor) -> Tensor:
    """Compute exp of a difference of logarithms, float64 -> float32; at most one."""
    return log.float().clamp_(max=0.0).exp_()


def _each_head(x: Tensor, each: int) -> Tensor:
    """Repeat what a key head has for each of its value heads: [n, Hk, ...] -> [n, Hk each, ...]."""
    return x[:, :, None].expand(-1, -1, each, *x.shape[2:]).flatten(1, 2)


def unit(x: Tensor) -> Tensor:
    """Scale x [..., K] float32 to length one."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + _UNIT_EPS)


def gated_delta_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Advance each row's state by one token and read the output from it.

    q, k: [B, Hk, K], v: [B, Hv, V] float; g [B, Hv] or [B, Hv, K], beta [B, Hv] float32: as in
          gated_delta_prefill
    pool: [slots, Hv, K, V] float, strided; written in place, in its own dtype
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool, or None where every row has one
    returns [B, Hv, V], dtype of v; computed in float32
    """
    state = pool.index_select(0, read_slots).float()
    if has_initial is not None:
        state = torch.where(has_initial[:, None, None, None], state, 0.0)
    each = v.shape[1] // k.shape[1]
    q_heads = _each_head(unit(q.float()).mul_(q.shape[-1] ** -0.5), each)[..., None]
    k_heads = _each_head(unit(k.float()), each)[..., None]
    state.mul_((g if g.dim() == 3 else g[..., None]).exp()[..., None])
    correction = (v.float() - (state * k_heads).sum(dim=2)) * beta[..., None]
    state.addcmul_(k_heads, correction[:, :, None])
    pool.index_copy_(0, write_slots, state.to(pool.dtype))
    return state.mul_(q_heads).sum(dim=2).to(v.dtype)


def gated_delta_prefill_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
) -> Tensor:
    """Compute gated_delta_prefill token by token in float64; returns float64 [T, Hv, V]. For
    tests."""
    kept: dict[tuple[int, int], int] = {}
    if snapshots is not None:
        for row, depth, slot in zip(snapshots.rows, snapshots.depths, snapshots.slots, strict=True):
            kept[row, depth] = slot
    initial = pool[read_slots].double()
    o = torch.empty(v.shape, dtype=torch.float64)
    for row in range(len(cu_seqlens_host) - 1):
        state = initial[row] if bool(has_initial[row]) else torch.zeros_like(initial[row])
        depth = prefix_lens_host[row]
        for t in range(cu_seqlens_host[row], cu_seqlens_host[row + 1]):
            o[t], state = _step_ref(q[t], k[t], v[t], g[t], beta[t], state)
            depth += 1
            if (row, depth) in kept:
                pool[kept[row, depth]] = state.to(pool.dtype)
        pool[write_slots[row]] = state.to(pool.dtype)
    return o


def gated_delta_update_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Compute gated_delta_update row by row in float64; returns float64 [B, Hv, V]. For tests."""
    rows = v.shape[0]
    if has_initial is None:
        has_initial = torch.ones(rows, dtype=torch.bool)
    slots = (pool, read_slots, write_slots, has_initial)
    return gated_delta_prefill_ref(q, k, v, g, beta, range(rows + 1), [0] * rows, *slots)


def _step_ref(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token head by head: q, k [Hk, K], v [Hv, V], g [Hv] or [Hv, K], beta [Hv] float,
    state [Hv, K, V] float64 -> output [Hv, V] and the next state, float64."""
    outputs, states = [], []
    each = v.shape[0] // k.shape[0]
    for head, before in enumerate(state):
        query, key = q[head // each].double(), k[head // each].double()
        query = query / (query @ query + _UNIT_EPS).sqrt() / query.shape[0] ** 0.5
        key = key / (key @ key + _UNIT_EPS).sqrt()
        decayed = g[head].double().exp().expand(key.shape)[:, None] * before
        correction = beta[head].double() * (v[head].double() - decayed.T @ key)
        after = decayed + torch.outer(key, correction)
        outputs.append(after.T @ query)
        states.append(after)
    return torch.stack(outputs), torch.stack(states)
