"""The state-space-dual scan of Mamba-2 over ragged rows (Dao and Gu, 2024, arXiv:2405.21060).

For every head, with `dt = clamp(softplus(dt_raw + dt_bias), *dt_limit)`:

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T        state [P, N]
    y_t = h_t C_t + D x_t

Rows are cut into chunks (see chunks.py). Inside a chunk the recurrence is a masked matrix product;
between chunks only the states are passed on. All of it is float32, but for cumulative logarithms; a
decay is the exponential of one difference of them, so it never exceeds one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.chunks import ChunkIndex, ChunkTile, SnapshotPlan, chunk_index
from baton.kernels.host_plan import HostPlan

# Work inside a chunk grows with its length squared, so a CPU does better with short ones: 2,048
# tokens of 24 heads (64 x 128) take 69, 68 and 107 ms on one core at 32, 64 and 128.
_CPU_BLOCK = 64


@dataclass(frozen=True)
class _TileTerms:
    """The inputs of the second half of the scan, of one tile of m chunks of length L."""

    y: Tensor  # [m, L, H, P] float32, the part that comes from inside the chunk
    decay_in: Tensor  # [m, L, H] float32, decay from the chunk's entry to each token
    C: Tensor  # [m, G, L, N] float32


def ssd_index(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    chunk_size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[ChunkIndex]:
    """Plan the chunks that `ssd_prefill` computes for this batch in every layer.

    Their size divides `chunk_size`, so every absolute multiple of `chunk_size` is a boundary.
    """
    return chunk_index(cu_seqlens_host, prefix_lens_host, block_size(chunk_size), snapshots)


def block_size(chunk_size: int) -> int:
    """Return the tokens of a computed chunk for a model whose chunks have `chunk_size`."""
    return math.gcd(chunk_size, _CPU_BLOCK) if chunk_size > _CPU_BLOCK else chunk_size


def ssd_prefill(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    cu_seqlens: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    chunk_size: int,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
    index: ChunkIndex | None = None,
) -> Tensor:
    """Scan packed rows; leave each row's final state, and its snapshots, in the pool.

    x:        [T, H, P] float
    dt:       [T, H] float, raw (before bias and softplus)
    A:        [H] float32, negative
    B, C:     [T, G, N] float; head h uses group h // (H // G)
    D:        [H] float
    dt_bias:  [H] float
    dt_limit: (low, high) clamp of dt after softplus
    cu_seqlens: [B + 1] int64 on the device, packed token where each row begins; host copy beside
    prefix_lens_host: [B], absolute depth of each row's first token
    chunk_size: the model's; chunks are cut at its absolute multiples (or finer)
    ssm_pool: [slots, H, P, N] float, strided; written in place, in its own dtype
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool; False starts from zeros, whatever the read slot holds
    snapshots: states to keep at multiples of `chunk_size` or at a row's end, in slots of their own
    index:    ssd_index(...) of this batch, where the caller has it; it already holds the snapshots
    returns   [T, H, P], dtype of x
    """
    if index is None:
        plan = ssd_index(cu_seqlens_host, prefix_lens_host, chunk_size, snapshots)
        index = plan.on(x.device)
    chunks, batch = index.num_chunks, read_slots.shape[0]
    # The states that enter the chunks, then the final ones; snapshots index the two as one.
    states = x.new_empty((chunks + batch, *ssm_pool.shape[1:]), dtype=torch.float32)
    decays = x.new_empty((chunks, x.shape[1]), dtype=torch.float32)
    dt_bias, A = dt_bias.float(), A.float()
    terms = []
    for tile in index.tiles:
        term, state, decay = _within_chunks(x, dt, A, B, C, D, dt_bias, dt_limit, tile)
        states.index_copy_(0, tile.chunks, state)
        decays.index_copy_(0, tile.chunks, decay)
        terms.append(term)
    final = states[chunks:]
    starts = has_initial[index.row_order, None, None, None]
    initial = ssm_pool.index_select(0, read_slots[index.row_order]).float()
    final.copy_(torch.where(starts, initial, 0.0))
    _pass_states(states[:chunks], decays, final, index.widths)
    outputs = [
        _add_entry_state(term, states[tile.chunks]).flatten(0, 1)
        for term, tile in zip(terms, index.tiles, strict=True)
    ]
    nothing = states.new_empty((0, *x.shape[1:]))
    y = outputs[0] if len(outputs) == 1 else torch.cat((nothing, *outputs))
    ssm_pool.index_copy_(0, write_slots[index.row_order], final.to(ssm_pool.dtype))
    kept = states[index.snapshot_sources]
    ssm_pool.index_copy_(0, index.snapshot_slots, kept.to(ssm_pool.dtype))
    return y.index_select(0, index.token_places).to(x.dtype)


def _within_chunks(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    tile: ChunkTile,
) -> tuple[_TileTerms, Tensor, Tensor]:
    """Compute what a tile's m chunks give without the state that enters them.

    Returns the terms, the states [m, H, P, N] that the chunks build from zero, and the decay
    [m, H] of whatever enters them; all float32.
    """
    m, L = tile.valid.shape
    _, H, P = x.shape
    G, N = B.shape[1:]
    x_tile = x.index_select(0, tile.tokens).float().view(m, L, H, P)
    B_tile = B.index_select(0, tile.tokens).float().view(m, L, G, N).transpose(1, 2)
    C_tile = C.index_select(0, tile.tokens).float().view(m, L, G, N).transpose(1, 2).contiguous()
    step = discretise(dt[tile.tokens].view(m, L, H), dt_bias, dt_limit)
    step = torch.where(tile.valid[:, :, None], step, 0.0)  # a padded token changes nothing
    # In float64 until they are subtracted: the sums grow, their differences stay small.
    log_decay = (step * A).transpose(1, 2).double().cumsum(dim=2)  # [m, H, L]
    scores = torch.matmul(C_tile, B_tile.transpose(2, 3)).tril_()  # [m, G, i, j]
    weights = log_decay[:, :, :, None] - log_decay[:, :, None, :]
    weights = weights.float().clamp_(max=0.0).exp_()
    weights.view(m, G, H // G, L, L).mul_(scores[:, :, None])
    x_step = torch.mul(x_tile, step[:, :, :, None]).transpose(1, 2).contiguous()
    y = torch.matmul(weights, x_step).transpose(1, 2)  # [m, L, H, P]
    y = torch.addcmul(y, x_tile, D.float()[:, None])
    to_end = (log_decay[:, :, -1:] - log_decay).float().exp_()
    x_end = (x_step * to_end[:, :, :, None]).view(m, G, H // G, L, P)
    x_end = x_end.transpose(2, 3).reshape(m, G, L, (H // G) * P)
    state = torch.matmul(x_end.transpose(2, 3), B_tile).view(m, H, P, N)
    entry = log_decay.float().exp_()
    return _TileTerms(y, entry.transpose(1, 2), C_tile), state, entry[:, :, -1]


def _pass_states(states: Tensor, decays: Tensor, state: Tensor, widths: Sequence[int]) -> None:
    """Turn each chunk's own contribution into the state that enters it.

    states: [chunks, H, P, N] float32, contributions; overwritten with the entry states
    decays: [chunks, H] float32
    state:  [B, H, P, N] float32, initial states in row order; overwritten with the final ones
    """
    first = 0
    for width in widths:
        here = states[first : first + width]
        carried = torch.addcmul(here, state[:width], decays[first : first + width, :, None, None])
        here.copy_(state[:width])
        state[:width] = carried
        first += width


def _add_entry_state(term: _TileTerms, entry: Tensor) -> Tensor:
    """Add what the state that enters each chunk gives to its tokens: [m, L, H, P] float32."""
    m, L, H, P = term.y.shape
    G = term.C.shape[1]
    read = torch.matmul(term.C, entry.view(m, G, (H // G) * P, -1).transpose(2, 3))
    read = read.view(m, G, L, H // G, P).transpose(1, 2).reshape(m, L, H, P)
    return torch.addcmul(term.y, read, term.decay_in[:, :, :, None])


def discretise(dt: Tensor, dt_bias: Tensor, dt_limit: tuple[float, float]) -> Tensor:
    """Compute clamp(softplus(dt + dt_bias)) in float32; dt [..., H] float, dt_bias [H] float.

    Written out, because torch's softplus rounds differently at the end of a buffer (its scalar
    tail), which would make a result depend on what else is in the batch.
    """
    raw = dt.float() + dt_bias.float()
    return (raw.clamp(min=0.0) + raw.abs().neg_().exp_().log1p_()).clamp_(*dt_limit)


def ssd_prefill_ref(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    cu_seqlens: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    chunk_size: int,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
) -> Tensor:
    """Compute ssd_prefill token by token in float64; returns float64 [T, H, P]. For tests."""
    heads = x.shape[1]
    kept: dict[tuple[int, int], int] = {}
    if snapshots is not None:
        for row, depth, slot in zip(snapshots.rows, snapshots.depths, snapshots.slots, strict=True):
            kept[row, depth] = slot
    step = F.softplus(dt.double() + dt_bias.double()).clamp(*dt_limit)
    per_head = heads // B.shape[1]
    B_heads = B.double().repeat_interleave(per_head, dim=1)
    C_heads = C.double().repeat_interleave(per_head, dim=1)
    initial = ssm_pool[read_slots].double()
    y = torch.empty(x.shape, dtype=torch.float64)
    for row in range(len(cu_seqlens_host) - 1):
        state = initial[row] if bool(has_initial[row]) else torch.zeros_like(initial[row])
        depth = prefix_lens_host[row]
        for t in range(cu_seqlens_host[row], cu_seqlens_host[row + 1]):
            x_t = x[t].double()
            decay = (step[t] * A.double()).exp()[:, None, None]
            state = state * decay + (step[t, :, None] * x_t)[:, :, None] * B_heads[t, :, None, :]
            y[t] = (state * C_heads[t, :, None, :]).sum(dim=2) + D.double()[:, None] * x_t
            depth += 1
            if (row, depth) in kept:
                ssm_pool[kept[row, depth]] = state.to(ssm_pool.dtype)
        ssm_pool[write_slots[row]] = state.to(ssm_pool.dtype)
    return y
