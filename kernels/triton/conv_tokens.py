"""The convolution of several tokens a row on a GPU: verified without writing a window, then the
windows behind those accepted; see baton.kernels.verify."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.conv1d import STEP_CHANNELS, Gates, conv_inputs
from baton.kernels.triton.shapes import packed
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
) -> Tensor:
    """Convolve Q tokens a row, in one launch: x [B Q, C] float -> [B Q, C], dtype of x.

    gates: see Gates. kept: [B Q, C], dtype of x; set to the inputs of the convolution
    """
    tokens, channels = x.shape
    y = x.new_empty((tokens, channels))
    if tokens == 0:
        return y
    _verify_conv[(tokens, triton.cdiv(channels, STEP_CHANNELS))](
        packed(x), *gates, weight, bias, packed(conv_pool), read_slots, has_initial, y,
        None if kept is None else packed(kept), x.stride(0), conv_pool.stride(0),
        0 if kept is None else kept.stride(0), channels, tokens // read_slots.shape[0],
        WIDTH=weight.shape[1], SILU=silu, BLOCK=STEP_CHANNELS, num_warps=4,
    )  # fmt: skip
    return y


def commit_conv(kept: Tensor, width: int, conv_pool: Tensor, accepted: Accepted) -> None:
    """Write the windows behind the accepted tokens, in one launch. kept: [B Q, C] float."""
    _commit(kept, width, None, None, conv_pool, accepted, None)


def convolve_and_commit(
    kept: Tensor, weight: Tensor, bias: Tensor | None, conv_pool: Tensor, accepted: Accepted
) -> Tensor:
    """Convolve the accepted tokens and write the windows behind them, in one launch.

    kept: [B Q, C] float, strided over tokens
    returns [B Q, C], dtype of kept: silu of the accepted tokens' convolution; of others anything
    """
    y = kept.new_empty(kept.shape)
    _commit(kept, weight.shape[1], weight, bias, conv_pool, accepted, y)
    return y


def _commit(
    kept: Tensor,
    width: int,
    weight: Tensor | None,
    bias: Tensor | None,
    conv_pool: Tensor,
    accepted: Accepted,
    y: Tensor | None,
) -> None:
    rows, (tokens, channels) = accepted.counts.shape[0], kept.shape
    if rows == 0:
        return
    _commit_conv[(rows, triton.cdiv(channels, STEP_CHANNELS))](
        packed(kept), weight, bias, packed(conv_pool), *accepted, y,
        kept.stride(0), conv_pool.stride(0), channels, tokens // rows,
        WIDTH=width, BLOCK=STEP_CHANNELS, num_warps=4,
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
    x_stride,
    channel,
    inside,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the sum of one token's taps and its newest input. first: of the row's tokens.

    A window keeps inputs in the pool's dtype, so all but the newest are rounded to it.
    """
    LEAD: tl.constexpr = WIDTH - 1
    total = tl.zeros((BLOCK,), tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(LEAD):
        at = token - LEAD + tap
        value = tl.zeros((BLOCK,), tl.float32)
        if at >= 0:
            value = conv_inputs(x, before, (first + at) * x_stride + channel, inside)
            value = narrow(value, pool.dtype.element_ty).to(tl.float32)
        elif started:
            value = tl.load(source + (at + LEAD), mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0)
    newest = conv_inputs(x, before, (first + token) * x_stride + channel, inside)
    total += newest * tl.load(weight + channel * WIDTH + LEAD, mask=inside, other=0.0)
    return total, newest


@triton.jit
def _verify_conv(
    x,
    before,
    after,
    weight,
    bias,
    pool,
    read_slots,
    has_initial,
    y,
    kept,
    x_stride,
    slot_stride,
    kept_stride,
    channels,
    tokens,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
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
    total, newest = _convolve_token(
        x, before, weight, bias, pool, source, started, row * tokens, flat - row * tokens,
        x_stride, channel, inside, WIDTH, BLOCK,
    )  # fmt: skip
    if SILU:
        total = total * sigmoid(total)
    if after is not None:
        total *= tl.load(after + flat * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + flat * channels + channel, total, mask=inside)
    if kept is not None:
        tl.store(kept + flat * kept_stride + channel, newest, mask=inside)


@triton.jit
def _window(
    x,
    pool,
    target,
    source,
    started,
    first,
    count,
    x_stride,
    channel,
    inside,
    LEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the window behind `count` tokens. It may lie where the initial one does: a column is
    written after those that it is read from, as long as at least one token is accepted."""
    for tap in tl.static_range(LEAD):
        at = count - LEAD + tap
        value = tl.zeros((BLOCK,), tl.float32)
        if at >= 0:
            value = tl.load(x + (first + at) * x_stride + channel, mask=inside, other=0.0).to(
                tl.float32
            )
        elif started:
            value = tl.load(source + (at + LEAD), mask=inside, other=0.0).to(tl.float32)
        tl.store(target + tap, narrow(value, pool.dtype.element_ty), mask=inside)


@triton.jit
def _commit_conv(
    kept,
    weight,
    bias,
    pool,
    read_slots,
    write_slots,
    has_initial,
    counts,
    track_slots,
    track_counts,
    y,
    kept_stride,
    slot_stride,
    channels,
    tokens,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve the accepted tokens of some channels of one row, then write their windows: the
    snapshot's first, because the row's own may lie where the initial one does."""
    LEAD: tl.constexpr = WIDTH - 1
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = tl.program_id(0).to(tl.int64)
    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    source = pool + tl.load(read_slots + row) * slot_stride + channel * LEAD
    count, tracked = tl.load(counts + row), tl.load(track_counts + row)
    first = row * tokens
    if y is not None:
        for token in range(count):
            total, _ = _convolve_token(
                kept, None, weight, bias, pool, source, started, first, token, kept_stride,
                channel, inside, WIDTH, BLOCK,
            )  # fmt: skip
            total = total * sigmoid(total)
            tl.store(y + (first + token) * channels + channel, total, mask=inside)
    if (tracked > 0) & (tracked <= count):
        target = pool + tl.load(track_slots + row) * slot_stride + channel * LEAD
        _window(
            kept, pool, target, source, started, first, tracked, kept_stride, channel, inside,
            LEAD, BLOCK,
        )  # fmt: skip
    if count > 0:
        target = pool + tl.load(write_slots + row) * slot_stride + channel * LEAD
        _window(
            kept, pool, target, source, started, first, count, kept_stride, channel, inside,
            LEAD, BLOCK,
        )  # fmt: skip
