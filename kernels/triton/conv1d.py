"""Causal depthwise convolution on a GPU; see baton.kernels.conv1d."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.chunks import RaggedRows, SnapshotPlan
from baton.kernels.conv1d import GatedConvRows, conv_parts
from baton.kernels.host_plan import HostPlan
from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import packed

_CHANNELS = 512  # of one program of a prompt
_KEPT = 128  # channels of one program that keeps windows: one a thread
_TOKENS = 64  # of one program of a prompt
_AHEAD = 8  # of them that it loads before it computes any
STEP_CHANNELS = 256  # of one program of a decode step

# What the inputs are multiplied with, and the outputs: [T, C], as far apart as the inputs.
Gates = tuple[Tensor | None, Tensor | None]


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
    silu: bool = True,
    gates: Gates = (None, None),
) -> Tensor:
    """Compute baton.kernels.conv1d.causal_conv1d_update.

    gates: see Gates
    """
    rows, channels = x.shape
    y = x.new_empty((rows, channels))
    if rows == 0:
        return y
    _conv_update[(triton.cdiv(channels, STEP_CHANNELS), rows)](
        packed(x),
        *gates,
        weight,
        bias,
        packed(conv_pool),
        read_slots,
        write_slots,
        has_initial,
        y,
        x.stride(0),
        conv_pool.stride(0),
        channels,
        WIDTH=weight.shape[1],
        SILU=silu,
        BLOCK=STEP_CHANNELS,
        num_warps=4,
    )
    return y


@triton.jit
def conv_inputs(x, before, place, mask):
    """Return the convolution's float32 inputs at `place`, rounded as a window keeps them."""
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if before is not None:
        value = value * tl.load(before + place, mask=mask, other=0.0).to(tl.float32)
        value = narrow(value, x.dtype.element_ty).to(tl.float32)
    return value


@kernel
def _conv_update(
    x,
    before,
    after,
    weight,
    bias,
    pool,
    read_slots,
    write_slots,
    has_initial,
    y,
    x_stride,
    slot_stride,
    channels,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Advance some channels of one row. Where a slot is read and written, threads store what
    others have loaded: the layouts of the two differ. So all of a window is loaded before any of
    it is stored."""
    LEAD: tl.constexpr = WIDTH - 1
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    inside = channel < channels
    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    source = pool + tl.load(read_slots + row) * slot_stride + channel * LEAD
    target = pool + tl.load(write_slots + row) * slot_stride + channel * LEAD

    total = tl.zeros((BLOCK,), tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    window = ()
    for tap in tl.static_range(LEAD):
        value = tl.zeros((BLOCK,), tl.float32)
        if started:
            value = tl.load(source + tap, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0)
        window += (value,)  # type: ignore[assignment]  # a tuple of Triton's
    tl.debug_barrier()
    for tap in tl.static_range(1, LEAD):
        tl.store(target + tap - 1, window[tap], mask=inside)
    newest = conv_inputs(x, before, row * x_stride + channel, inside)
    total += newest * tl.load(weight + channel * WIDTH + LEAD, mask=inside, other=0.0)
    tl.store(target + LEAD - 1, narrow(newest, pool.dtype.element_ty), mask=inside)
    if SILU:
        total = total * sigmoid(total)
    if after is not None:
        total *= tl.load(after + row * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
    total = narrow(total, y.dtype.element_ty)
    tl.store(y + row * channels + channel, total, mask=inside)


def gated_conv_step(
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_step`, in one launch."""
    before, after, x = conv_parts(bcx, weight.shape[0])
    slots = (read_slots, write_slots, has_initial)
    return causal_conv1d_update(
        x, weight, bias, conv_pool, *slots, silu=False, gates=(before, after)
    )


def plan_gated_conv_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[GatedConvRows]:
    """Implement `Kernels.plan_gated_conv_prefill`; two launches a layer."""
    tiles = conv_tiles(cu_seqlens_host, prefix_lens_host, snapshots)

    def build(parts: Iterator[Tensor]) -> GatedConvRows:
        tiles_of = tiles.build(parts)
        return lambda rows: partial(_gated_prompts, tiles_of(rows))

    return HostPlan(tiles.lists, build)


def _gated_prompts(
    tiles: "ConvTiles", bcx: Tensor, weight: Tensor, bias: Tensor | None, conv_pool: Tensor
) -> Tensor:
    before, after, x = conv_parts(bcx, weight.shape[0])
    return causal_conv1d_prompts(
        x, weight, bias, conv_pool, tiles, silu=False, gates=(before, after)
    )


@dataclass(frozen=True)
class ConvTiles:
    """The tokens of each program and the windows to keep; built once a batch.

    rows, starts:  [tiles] int64, a tile's row and its first packed token
    cu_seqlens:    [B + 1] int64
    row_snapshots: [B + 1] int64, the first snapshot of each row
    ends, slots:   [S] int64, the token after each snapshot, and its slot
    slots of rows: as in RaggedRows
    """

    rows: Tensor
    starts: Tensor
    cu_seqlens: Tensor
    row_snapshots: Tensor
    ends: Tensor
    slots: Tensor
    read_slots: Tensor
    write_slots: Tensor
    has_initial: Tensor


def conv_tiles(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    snapshots: SnapshotPlan | None,
) -> HostPlan[Callable[[RaggedRows], ConvTiles]]:
    """Cut the rows of a batch into tiles."""
    tiles = [
        (row, start)
        for row in range(len(prefix_lens_host))
        for start in range(cu_seqlens_host[row], cu_seqlens_host[row + 1], _TOKENS)
    ]
    kept = kept_states(cu_seqlens_host, prefix_lens_host, snapshots)

    def build(parts: Iterator[Tensor]) -> Callable[[RaggedRows], ConvTiles]:
        tile_rows, starts, row_snapshots, ends, slots = islice(parts, 5)
        return lambda rows: ConvTiles(
            tile_rows, starts, rows.cu_seqlens, row_snapshots, ends, slots,
            rows.read_slots, rows.write_slots, rows.has_initial,
        )  # fmt: skip

    return HostPlan(([row for row, _ in tiles], [start for _, start in tiles], *kept), build)


def kept_states(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    snapshots: SnapshotPlan | None,
) -> tuple[list[int], list[int], list[int]]:
    """Return the snapshots in order of row and depth: each row's first [B + 1]; the packed token
    after each; its slot."""
    kept: list[tuple[int, int, int]] = []
    if snapshots is not None:
        extents = snapshots.extents(cu_seqlens_host, prefix_lens_host)
        kept = sorted(
            (row, cu_seqlens_host[row] + extent, slot)
            for row, extent, slot in zip(snapshots.rows, extents, snapshots.slots, strict=True)
        )
    counts = [sum(row < r for row, _, _ in kept) for r in range(len(cu_seqlens_host))]
    return counts, [end for _, end, _ in kept], [slot for _, _, slot in kept]


def causal_conv1d_prompts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    tiles: ConvTiles,
    silu: bool = True,
    gates: Gates = (None, None),
) -> Tensor:
    """Compute baton.kernels.conv1d.causal_conv1d_varlen, with the batch's rows and snapshots in
    `tiles`.

    gates: see Gates
    """
    tokens, channels = x.shape
    y = x.new_empty((tokens, channels))
    shared = (
        packed(conv_pool), tiles.cu_seqlens, tiles.read_slots, x.stride(0), conv_pool.stride(0),
        channels,
    )  # fmt: skip
    width = weight.shape[1]
    if tokens:
        _convolve[(triton.cdiv(channels, _CHANNELS), tiles.rows.shape[0])](
            packed(x), *gates, weight, bias, y, tiles.rows, tiles.starts, tiles.has_initial,
            *shared, WIDTH=width, SILU=silu, TOKENS=_TOKENS, AHEAD=_AHEAD, BLOCK=_CHANNELS,
            num_warps=4,
        )  # fmt: skip
    _keep_windows[(triton.cdiv(channels, _KEPT), tiles.read_slots.shape[0])](
        x, gates[0], tiles.write_slots, tiles.has_initial, tiles.row_snapshots, tiles.ends,
        tiles.slots, *shared, LEAD=width - 1, BLOCK=_KEPT, num_warps=4,
    )  # fmt: skip
    return y


@kernel
def _convolve(
    x,
    before,
    after,
    weight,
    bias,
    y,
    rows,
    starts,
    has_initial,
    pool,
    cu_seqlens,
    read_slots,
    x_stride,
    slot_stride,
    channels,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve some channels of one tile of tokens. Windows are read, and written by a later
    launch."""
    LEAD: tl.constexpr = WIDTH - 1
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, begin = tl.load(rows + tl.program_id(1)), tl.load(starts + tl.program_id(1))
    first, end = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
    end = tl.minimum(begin + TOKENS, end)
    in_c = channel < channels
    started = tl.load(has_initial + row) != 0
    window = pool + tl.load(read_slots + row) * slot_stride + channel * LEAD

    least = tl.zeros((BLOCK,), tl.float32)
    if bias is not None:
        least += tl.load(bias + channel, mask=in_c, other=0.0).to(tl.float32)
    taps, recent = (), ()
    for tap in tl.static_range(WIDTH):
        taps += (tl.load(weight + channel * WIDTH + tap, mask=in_c, other=0.0),)  # type: ignore[assignment]  # a tuple of Triton's
    for tap in tl.static_range(LEAD):
        token = begin - LEAD + tap
        value = tl.zeros((BLOCK,), tl.float32)
        if token >= first:
            value = conv_inputs(x, before, token * x_stride + channel, in_c)
        elif started:  # tokens before the row's first come from its window
            value = tl.load(window + (token - first + LEAD), mask=in_c, other=0.0).to(tl.float32)
        recent += (value,)  # type: ignore[assignment]  # as above
    for step in range(begin, end, AHEAD):
        # All are loaded before any output is stored: stores would hold the loads back.
        gates = ()
        for ahead in tl.static_range(AHEAD):
            seen = in_c & (step + ahead < end)
            place = (step + ahead) * x_stride + channel
            recent += (conv_inputs(x, before, place, seen),)  # type: ignore[assignment]  # as above
            if after is not None:
                gates += (tl.load(after + place, mask=seen, other=0.0),)  # type: ignore[assignment]  # as above
        for ahead in tl.static_range(AHEAD):
            total = least
            for tap in tl.static_range(WIDTH):
                total += recent[ahead + tap] * taps[tap]
            if SILU:
                total = total * sigmoid(total)
            if after is not None:
                total *= gates[ahead].to(tl.float32)
            seen = in_c & (step + ahead < end)
            total = narrow(total, y.dtype.element_ty)
            tl.store(y + (step + ahead) * channels + channel, total, mask=seen)
        recent = recent[AHEAD:]  # type: ignore[assignment]  # as above


@kernel
def _keep_windows(
    x,
    before,
    write_slots,
    has_initial,
    row_snapshots,
    ends,
    slots,
    pool,
    cu_seqlens,
    read_slots,
    x_stride,
    slot_stride,
    channels,
    LEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the windows of one row for some channels: its snapshots', then its own, which may lie
    where the initial one does. A thread writes what it has read: no column is needed after it is
    written."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    inside = channel < channels
    first, last = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
    started = tl.load(has_initial + row) != 0
    source = pool + tl.load(read_slots + row) * slot_stride + channel * LEAD
    begin, stop = tl.load(row_snapshots + row), tl.load(row_snapshots + row + 1)
    for kept in range(begin, stop + 1):
        end, slot = last, tl.load(write_slots + row)
        if kept < stop:
            end, slot = tl.load(ends + kept), tl.load(slots + kept)
        target = pool + slot * slot_stride + channel * LEAD
        for tap in tl.static_range(LEAD):
            token = end - LEAD + tap
            value = tl.zeros((BLOCK,), tl.float32)
            if token >= first:
                value = conv_inputs(x, before, token * x_stride + channel, inside)
            elif started:
                value = tl.load(source + (token - first + LEAD), mask=inside, other=0.0).to(
                    tl.float32
                )
            tl.store(target + tap, value, mask=inside)
