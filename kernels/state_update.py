"""One decode step of the Mamba-2 recurrence for a batch of rows, on slots of the state pool."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.ssd import discretise


def selective_state_update(
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    has_initial: Tensor | None = None,
) -> Tensor:
    """Advance each row's state by one token and read the output from it.

    ssm_pool: [slots, H, P, N] float, strided; written in place, in its own dtype
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    x:        [B, H, P] float
    dt:       [B, H] float, raw (before bias and softplus)
    A:        [H] float32, negative
    B, C:     [B, G, N] float; head h uses group h // (H // G)
    D, dt_bias: [H] float
    dt_limit: (low, high) clamp of dt after softplus
    has_initial: [B] bool, or None where every row has one
    returns   [B, H, P], dtype of x; computed in float32
    """
    rows, H, P = x.shape
    G, N = B.shape[1:]
    state = ssm_pool.index_select(0, read_slots).float()
    if has_initial is not None:
        state = torch.where(has_initial[:, None, None, None], state, 0.0)
    step = discretise(dt, dt_bias, dt_limit)
    state.mul_((step * A.float()).exp_()[:, :, None, None])
    grouped = state.view(rows, G, H // G, P, N)
    x_step = (x.float() * step[:, :, None]).view(rows, G, H // G, P, 1)
    grouped.addcmul_(x_step, B.float().view(rows, G, 1, 1, N))
    ssm_pool.index_copy_(0, write_slots, state.to(ssm_pool.dtype))
    # A product and a sum: 5 x faster here than a batch of matrix-vector products.
    y = grouped.mul_(C.float().view(rows, G, 1, 1, N)).sum(dim=-1).view(rows, H, P)
    return y.addcmul_(x.float(), D.float()[:, None]).to(x.dtype)


def selective_state_update_ref(
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    has_initial: Tensor | None = None,
) -> Tensor:
    """Compute selective_state_update row by row and head by head in float64; returns float64
    [B, H, P]. For tests."""
    rows, heads, _ = x.shape
    per_head = heads // B.shape[1]
    states = ssm_pool[read_slots].double()
    y = torch.empty(x.shape, dtype=torch.float64)
    for row in range(rows):
        for head in range(heads):
            state = states[row, head]
            if has_initial is not None and not bool(has_initial[row]):
                state = torch.zeros_like(state)
            step = F.softplus(dt[row, head].double() + dt_bias[head].double()).clamp(*dt_limit)
            x_head = x[row, head].double()
            group = head // per_head
            state = state * (step * A[head].double()).exp()
            state = state + step * torch.outer(x_head, B[row, group].double())
            y[row, head] = state @ C[row, group].double() + D[head].double() * x_head
            states[row, head] = state
    for row in range(rows):
        ssm_pool[write_slots[row]] = states[row].to(ssm_pool.dtype)
    return y
