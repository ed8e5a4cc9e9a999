"""The decode step of the Mamba-2 recurrence on a GPU; see baton.kernels.state_update."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import discretise, narrow
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed

# Values of a state that one program holds: four warps keep them in 64 registers a thread.
_STATE_BLOCK = 8192


def state_block(P: int, N: int) -> tuple[int, int]:
    """Return how much of a head's state [P, N] one program holds."""
    width = block(N)
    return min(block(P), max(1, _STATE_BLOCK // width)), width


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
    """Compute baton.kernels.state_update.selective_state_update."""
    rows, H, P = x.shape
    G, N = B.shape[1:]
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows == 0:
        return y
    height, width = state_block(P, N)
    _state_update[(triton.cdiv(P, height), H, rows)](
        packed(ssm_pool),
        read_slots,
        write_slots,
        has_initial,
        packed(x),
        packed(dt),
        A,
        packed(B),
        packed(C),
        D,
        dt_bias,
        y,
        *dt_limit,
        ssm_pool.stride(0),
        x.stride(0),
        dt.stride(0),
        B.stride(0),
        C.stride(0),
        H,
        H // G,
        P,
        N,
        BLOCK_P=height,
        BLOCK_N=width,
        num_warps=4,
    )
    return y


@triton.jit
def advance(state, value, dt, b, A, dt_bias, low, high):
    """Advance a float32 state [P, N] by one token, of inputs value [P] and b [N]."""
    step = discretise(dt, dt_bias, low, high)
    return state * tl.exp(step * A) + (value * step)[:, None] * b[None, :]


@triton.jit
def read_out(state, value, c, D):
    """Return the output [P] of a state that a token has advanced."""
    return tl.sum(state * c[None, :], axis=1) + D * value


@kernel
def _state_update(
    pool,
    read_slots,
    write_slots,
    has_initial,
    x,
    dt,
    A,
    B,
    C,
    D,
    dt_bias,
    y,
    low,
    high,
    slot_stride,
    x_stride,
    dt_stride,
    B_stride,
    C_stride,
    H,
    per_group,
    P,
    N,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Advance one block of P of one head of one row."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    in_p, in_n = p < P, n < N
    inside = in_p[:, None] & in_n[None, :]
    place = (head * P + p)[:, None] * N + n[None, :]

    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    state = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    if started:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)

    raw = tl.load(dt + row * dt_stride + head).to(tl.float32)
    group = head // per_group
    b = tl.load(B + row * B_stride + group * N + n, mask=in_n, other=0.0).to(tl.float32)
    c = tl.load(C + row * C_stride + group * N + n, mask=in_n, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + head * P + p, mask=in_p, other=0.0).to(tl.float32)
    state = advance(state, value, raw, b, tl.load(A + head), tl.load(dt_bias + head), low, high)

    target = pool + tl.load(write_slots + row) * slot_stride
    tl.store(target + place, narrow(state, pool.dtype.element_ty), mask=inside)
    out = read_out(state, value, c, tl.load(D + head))
    out = narrow(out, y.dtype.element_ty)
    tl.store(y + (row * H + head) * P + p, out, mask=in_p)
