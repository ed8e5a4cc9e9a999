"""The convolution of several tokens a row on a GPU: verified without writing a window, then the
windows behind those accepted; see baton.kernels.verify."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention import LINKS
from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.branches import ancestor, nodes_of
from baton.kernels.triton.conv1d import STEP_CHANNELS, Gates, conv_inputs
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed
from baton.kernels.verify import Accepted


def verify_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    silu: bool = True,
    gates: Gates = (None, None),
    kept: Tensor | None = None,
    nodes: Tensor | None = None,
) -> Tensor:
    """Convolve Q tokens a row, in one launch: x [B Q, C] float -> [B Q, C], dtype of x.

    gates: see Gates. kept: [B Q, C], dtype of x; set to the inputs of the convolution
    nodes: as in gated_conv_verify
    """
    tokens, channels = x.shape
    y = x.new_empty((tokens, channels))
    if tokens == 0:
        return y
    _verify_conv[(tokens, triton.cdiv(channels, STEP_CHANNELS))](
        packed(x), *gates, weight, bias, packed(conv_pool), read_slots, has_initial, nodes, y,
        None if kept is None else packed(kept), x.stride(0), conv_pool.stride(0),
        0 if kept is None else kept.stride(0), channels, tokens // read_slots.shape[0],
        WIDTH=weight.shape[1], SILU=silu, LINKS=LINKS, BLOCK=STEP_CHANNELS, num_warps=4,
    )  # fmt: skip
    return y


def commit_windows(kept: Tensor, width: int, conv_pool: Tensor, accepted: Accepted) -> None:
    """Write the windows behind the accepted tokens of L layers, in one launch.

    kept: [L, B Q, C] float, strided over layers and tokens
    conv_pool: [L, slots, C, width - 1] float, strided over layers and slots
    """
    _commit(kept, width, None, None, conv_pool, accepted)


def convolve_and_commit(
    kept: Tensor, weight: Tensor, bias: Tensor | None, conv_pool: Tensor, accepted: Accepted
) -> None:
    """Convolve the accepted tokens of L layers and write the windows behind them, in one launch.

    kept: as in `commit_windows`; of accepted tokens silu of their convolution takes its place
    weight: [L, C, W] float32. bias: [L, C] float32
    """
    _commit(kept, weight.shape[2], weight, bias, conv_pool, accepted)


def _commit(
    kept: Tensor,
    width: int,
    weight: Tensor | None,
    bias: Tensor | None,
    conv_pool: Tensor,
    accepted: Accepted,
) -> None:
    rows, (layers, tokens, channels) = accepted.counts.shape[0], kept.shape
    if rows == 0:
        return
    _commit_conv[(rows, triton.cdiv(channels, STEP_CHANNELS), layers)](
        packed(kept, 2), weight, bias, packed(conv_pool, 2), *accepted,
        *kept.stride()[:2], *conv_pool.stride()[:2], channels, tokens // rows,
        WIDTH=width, TAPS=block(width - 1), BLOCK=STEP_CHANNELS, num_warps=4,
    )  # fmt: skip


@triton.jit
def _convolve_token(
    x,
    before,
    weight,
    bias,
    pool,
    source,
    started,
    first,
    token,
    path,
    x_stride,
    channel,
    inside,
    WIDTH: tl.constexpr,
    LINKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the sum of one token's taps and its newest input. first: of the row's tokens. path:
    the links of a node of a tree; None: the token follows the one before

    A window keeps inputs in the pool's dtype, so all but the newest are rounded to it.
    """
    LEAD: tl.constexpr = WIDTH - 1
    total = tl.zeros((BLOCK,), tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(LEAD):
        at = token - LEAD + tap
        if path is not None:
            at = nodes_of(path, LINKS) - 1 - LEAD + tap
        value = tl.zeros((BLOCK,), tl.float32)
        if at >= 0:
            earlier = first + at
            if path is not None:
                earlier = first + ancestor(path, at, LINKS)
            value = conv_inputs(x, before, earlier * x_stride + channel, inside)
            value = narrow(value, pool.dtype.element_ty).to(tl.float32)
        elif started:
            value = tl.load(source + (at + LEAD), mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0)
    newest = conv_inputs(x, before, (first + token) * x_stride + channel, inside)
    total += newest * tl.load(weight + channel * WIDTH + LEAD, mask=inside, other=0.0)
    return total, newest


@kernel
def _verify_conv(
    x,
    before,
    after,
    weight,
    bias,
    pool,
    read_slots,
    has_initial,
    nodes,
    y,
    kept,
    x_stride,
    slot_stride,
    kept_stride,
    channels,
    tokens,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    LINKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve some channels of one token."""
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    # Divided while it has 32 bits: a division of 64 is a call.
    row = (tl.program_id(0) // tokens).to(tl.int64)
    flat = tl.program_id(0).to(tl.int64)
    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    source = pool + tl.load(read_slots + row) * slot_stride + channel * (WIDTH - 1)
    path = None
    if nodes is not None:
        path = tl.load(nodes + flat)
    total, newest = _convolve_token(
        x, before, weight, bias, pool, source, started, row * tokens, flat - row * tokens, path,
        x_stride, channel, inside, WIDTH, LINKS, BLOCK,
    )  # fmt: skip
    if SILU:
        total = total * sigmoid(total)
    if after is not None:
        total *= tl.load(after + flat * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
    total = narrow(total, y.dtype.element_ty)
    tl.store(y + flat * channels + channel, total, mask=inside)
    if kept is not None:
        tl.store(kept + flat * kept_stride + channel, newest, mask=inside)


@triton.jit
def _window(
    x,
    pool,
    source,
    started,
    first,
    count,
    x_stride,
    channel,
    inside,
    LEAD: tl.constexpr,
    TAPS: tl.constexpr,
):
    """Return the window behind `count` tokens: [BLOCK, TAPS], of which LEAD columns count."""
    tap = tl.arange(0, TAPS)[None, :]
    at = count - LEAD + tap
    wanted = inside[:, None] & (tap < LEAD)
    tokens = x + (first + at) * x_stride + channel[:, None]
    newer = tl.load(tokens, mask=wanted & (at >= 0), other=0.0).to(tl.float32)
    older = tl.load(source[:, None] + at + LEAD, mask=wanted & (at < 0) & started, other=0.0)
    return tl.where(at >= 0, narrow(newer, pool.dtype.element_ty), older)


@kernel
def _commit_conv(
    kept,
    weight,
    bias,
    pool,
    read_slots,
    write_slots,
    has_initial,
    accepted,
    track_slots,
    track_counts,
    kept_layer,
    kept_stride,
    pool_layer,
    slot_stride,
    channels,
    tokens,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve the accepted tokens of some channels of one row of one layer, and write their
    windows.

    What is written lies where other threads read: outputs take the place of inputs, and a row's
    window that of the initial one. So windows are made first, the newest token is convolved before
    those that it does not see, and all of the row is convolved before a window is written.
    """
    LEAD: tl.constexpr = WIDTH - 1
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(2).to(tl.int64)
    kept += layer * kept_layer
    pool += layer * pool_layer
    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    source = pool + tl.load(read_slots + row) * slot_stride + channel * LEAD
    count, tracked = tl.load(accepted + row), tl.load(track_counts + row)
    first = row * tokens
    tracked = tl.where(tracked <= count, tracked, 0)
    last = _window(
        kept, pool, source, started, first, count, kept_stride, channel, inside, LEAD, TAPS
    )
    snapshot = _window(
        kept, pool, source, started, first, tl.maximum(tracked, 0), kept_stride, channel, inside,
        LEAD, TAPS,
    )  # fmt: skip
    tl.debug_barrier()
    if weight is not None:
        weight += layer * channels * WIDTH
        if bias is not None:
            bias += layer * channels
        for done in range(count):
            token = count - 1 - done
            total, _ = _convolve_token(
                kept, None, weight, bias, pool, source, started, first, token, None, kept_stride,
                channel, inside, WIDTH, 0, BLOCK,
            )  # fmt: skip
            total = narrow(total * sigmoid(total), kept.dtype.element_ty)
            tl.store(kept + (first + token) * kept_stride + channel, total, mask=inside)
        tl.debug_barrier()
    tap = tl.arange(0, TAPS)[None, :]
    place = channel[:, None] * LEAD + tap
    wanted = inside[:, None] & (tap < LEAD)
    if tracked > 0:
        target = pool + tl.load(track_slots + row) * slot_stride
        tl.store(target + place, snapshot, mask=wanted)
    if count > 0:
        target = pool + tl.load(write_slots + row) * slot_stride
        tl.store(target + place, last, mask=wanted)
