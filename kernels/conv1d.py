"""Causal depthwise convolution with SiLU over ragged rows, and its one-token update.

The state of a row is its window: the last `W - 1` inputs, oldest first, in
`conv_pool [slots, C, W - 1]` (a strided view of the slot-major pool; any float dtype). A row starts
from the window of its read slot, or from zeros where it has no initial state, and leaves its new
window in its write slot; a read slot that differs from the write slot is never written.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.chunks import RaggedRows, SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native
from baton.kernels.prompt_plan import PromptPlan, plan_prompts


@dataclass(frozen=True)
class ConvIndex:
    """Places in the extended input (each row after its window); built once a batch for all layers.

    sources:         [B * (W - 1) + T] int64, what lies at each place: a column of the rows' initial
                     windows, laid end to end, or (after those) a packed token
    token_places:    [T] int64, place of each packed token
    final_places:    [B, W - 1] int64, the last W - 1 inputs of each row
    snapshot_places: [S, W - 1] int64, the last W - 1 inputs before each snapshot
    snapshot_slots:  [S] int64, destination slots
    """

    sources: Tensor
    token_places: Tensor
    final_places: Tensor
    snapshot_places: Tensor
    snapshot_slots: Tensor


def conv_index(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[ConvIndex]:
    """Lay every row out behind its window of `width - 1` inputs."""
    lead = width - 1
    batch = len(cu_seqlens_host) - 1
    # Row r begins `lead` places later for each window before it.
    begins = [cu_seqlens_host[row] + lead * row for row in range(batch)]
    lengths = [cu_seqlens_host[row + 1] - cu_seqlens_host[row] for row in range(batch)]
    sources: list[int] = []
    tokens: list[int] = []
    for row, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        first = batch * lead + cu_seqlens_host[row]
        sources.extend(range(row * lead, (row + 1) * lead))
        sources.extend(range(first, first + length))
        tokens.extend(range(begin + lead, begin + lead + length))
    rows = snapshots.rows if snapshots else ()
    extents = snapshots.extents(cu_seqlens_host, prefix_lens_host) if snapshots else ()
    # `extent` tokens into a row, its last `lead` inputs begin `extent` places after its window
    # does: a window that is partly the initial one needs no case of its own.
    finals = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    kept = [begins[row] + extent for row, extent in zip(rows, extents, strict=True)]
    slots = snapshots.slots if snapshots else ()

    def build(parts: Iterator[Tensor]) -> ConvIndex:
        source_places, token_places, final, snapshot, snapshot_slots = islice(parts, 5)
        steps = torch.arange(lead, device=final.device)
        return ConvIndex(
            sources=source_places,
            token_places=token_places,
            final_places=final[:, None] + steps,
            snapshot_places=snapshot[:, None] + steps,
            snapshot_slots=snapshot_slots,
        )

    return HostPlan((sources, tokens, finals, kept, slots), build)


def causal_conv1d_varlen(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
    index: ConvIndex | None = None,
    silu: bool = True,
) -> Tensor:
    """Compute silu(causal depthwise convolution) of packed rows; leave each row's window in the
    pool.

    x:           [T, C] float
    weight:      [C, W] float; the last column multiplies the newest input
    bias:        [C] float or None
    cu_seqlens:  [B + 1] int64 on the device, packed token where each row begins; host copy beside
    prefix_lens_host: [B], absolute depth of each row's first token (only snapshots need it)
    conv_pool:   [slots, C, W - 1] float, strided; written in place
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool; False starts from zeros, whatever the read slot holds
    snapshots:   windows to keep at inner depths, in slots of their own
    index:       conv_index(...) of this batch, where the caller has it (it is the same in every
                 layer); it already holds the snapshots
    silu:        False: the sums as they are
    returns      [T, C], dtype of x; computed in float32
    """
    channels, width = weight.shape
    if index is None:
        plan = conv_index(cu_seqlens_host, prefix_lens_host, width, snapshots)
        index = plan.on(x.device)
    lead = width - 1
    windows = _initial_window(conv_pool, read_slots, has_initial).transpose(1, 2)
    columns = torch.cat((windows.reshape(-1, channels), x.float()))
    extended = columns.index_select(0, index.sources)
    taps = weight.float()
    # One pass a tap over the whole buffer; the places of the windows compute unused sums.
    span = extended.shape[0] - lead
    summed = extended[:span] * taps[:, 0]
    for tap in range(1, width):
        summed.addcmul_(extended[tap : tap + span], taps[:, tap])
    y = summed.index_select(0, index.token_places - lead)
    if bias is not None:
        y += bias.float()
    _write_window(conv_pool, write_slots, extended[index.final_places])
    _write_window(conv_pool, index.snapshot_slots, extended[index.snapshot_places])
    return (F.silu(y, inplace=True) if silu else y).to(x.dtype)


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
    silu: bool = True,
) -> Tensor:
    """Compute silu(convolution) of one token a row, and move each window on by one input.

    x:      [B, C] float
    weight: [C, W] float, bias: [C] float or None
    conv_pool: [slots, C, W - 1] float, strided; written in place
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool, or None where every row has one
    silu:   False: the sums as they are
    returns [B, C], dtype of x; computed in float32
    """
    window = _initial_window(conv_pool, read_slots, has_initial)
    window = torch.cat((window, x.float()[:, :, None]), dim=2)
    y = (window * weight.float()).sum(dim=2)
    if bias is not None:
        y += bias.float()
    conv_pool.index_copy_(0, write_slots, window[:, :, 1:].to(conv_pool.dtype))
    return (F.silu(y, inplace=True) if silu else y).to(x.dtype)


def conv_parts(bcx: Tensor, channels: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return B, C and x of a convolution's inputs; None for B and C where they are x alone."""
    if bcx.shape[1] == channels:
        return None, None, bcx
    before, after, x = bcx.chunk(3, dim=-1)
    return before, after, x


def gated_inputs(bcx: Tensor, channels: int) -> tuple[Tensor, Tensor | None]:
    """Return what a convolution takes, B * x, and C, or x and None; see `conv_parts`."""
    before, after, x = conv_parts(bcx, channels)
    return (x if before is None else before * x), after


def gated_conv_step(
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_step` in torch."""
    inputs, after = gated_inputs(bcx, weight.shape[0])
    slots = (read_slots, write_slots, has_initial)
    y = causal_conv1d_update(inputs, weight, bias, conv_pool, *slots, silu=False)
    return y if after is None else after * y


def gated_conv_step_native(
    native: Native,
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_step` natively, in one call, for float32 bcx; the pool in
    float32 or bfloat16."""
    channels, width = weight.shape
    before, after, x = conv_parts(bcx, channels)
    out = native.empty(bcx.shape[0], channels)
    native.call(
        "conv_step",
        out.numel() * width < SMALL,
        x=x,
        before=before,
        after=after,
        taps=weight,
        bias=bias,
        pool=conv_pool,
        read_slots=read_slots,
        write_slots=write_slots,
        has_initial=has_initial,
        out=out,
        rows=bcx.shape[0],
        channels=channels,
        x_stride=bcx.stride(0),
        width=width,
        pool_stride=conv_pool.stride(0),
        dtype=DTYPES[conv_pool.dtype],
        silu=0,
    )
    return out


# What a plan makes of one layer's bcx [T, 3 C or C], weight, bias and conv_pool (as in
# gated_conv_step): C * convolution(B * x) [T, C], dtype of bcx.
GatedConvPrefill = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]
# The same for the rows of a batch, once they are on the device.
GatedConvRows = Callable[[RaggedRows], GatedConvPrefill]


def plan_gated_conv_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[GatedConvRows]:
    """Implement `Kernels.plan_gated_conv_prefill` in torch."""
    index = conv_index(cu_seqlens_host, prefix_lens_host, width, snapshots)
    return HostPlan(index.lists, lambda parts: partial(_gated_prefill_of, index.build(parts)))


def _gated_prefill_of(index: ConvIndex, rows: RaggedRows) -> GatedConvPrefill:
    lens = (rows.cu_seqlens, rows.cu_seqlens_host, rows.prefix_lens_host)
    slots = (rows.read_slots, rows.write_slots, rows.has_initial)

    def prefill(bcx: Tensor, weight: Tensor, bias: Tensor | None, conv_pool: Tensor) -> Tensor:
        inputs, after = gated_inputs(bcx, weight.shape[0])
        y = causal_conv1d_varlen(
            inputs, weight, bias, *lens, conv_pool, *slots, index=index, silu=False
        )
        return y if after is None else after * y

    return prefill


def plan_gated_conv_prefill_native(
    native: Native,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[GatedConvRows]:
    """Implement `Kernels.plan_gated_conv_prefill` natively, in one call a layer, for float32 bcx;
    the pool in float32 or bfloat16."""
    plan = plan_prompts(cu_seqlens_host, prefix_lens_host, snapshots)
    return HostPlan(
        plan.lists, lambda parts: partial(_native_prefill_of, native, plan.build(parts))
    )


def _native_prefill_of(native: Native, plan: PromptPlan, rows: RaggedRows) -> GatedConvPrefill:
    def prefill(bcx: Tensor, weight: Tensor, bias: Tensor | None, conv_pool: Tensor) -> Tensor:
        channels, width = weight.shape
        before, after, x = conv_parts(bcx, channels)
        out = native.empty(bcx.shape[0], channels)
        native.call(
            "conv_prefill",
            out.numel() * width < SMALL,
            x=x,
            before=before,
            after=after,
            taps=weight,
            bias=bias,
            pool=conv_pool,
            read_slots=rows.read_slots,
            write_slots=rows.write_slots,
            has_initial=rows.has_initial,
            starts=plan.starts,
            row_snapshots=plan.row_snapshots,
            snapshot_ends=plan.snapshot_ends,
            snapshot_slots=plan.snapshot_slots,
            out=out,
            rows=plan.rows,
            tokens=bcx.shape[0],
            channels=channels,
            x_stride=bcx.stride(0),
            width=width,
            pool_stride=conv_pool.stride(0),
            dtype=DTYPES[conv_pool.dtype],
            silu=0,
        )
        return out

    return prefill


def causal_conv1d_varlen_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    conv_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor,
    snapshots: SnapshotPlan | None = None,
    silu: bool = True,
) -> Tensor:
    """Compute causal_conv1d_varlen token by token in float64; returns float64 [T, C]. For tests."""
    width = weight.shape[1]
    taps = weight.double()
    offset = torch.zeros(()).double() if bias is None else bias.double()
    kept: dict[tuple[int, int], int] = {}
    if snapshots is not None:
        for row, depth, slot in zip(snapshots.rows, snapshots.depths, snapshots.slots, strict=True):
            kept[row, depth] = slot
    windows = conv_pool[read_slots].double()
    outputs = []
    for row in range(len(cu_seqlens_host) - 1):
        window = windows[row] if bool(has_initial[row]) else torch.zeros_like(windows[row])
        depth = prefix_lens_host[row]
        for t in range(cu_seqlens_host[row], cu_seqlens_host[row + 1]):
            window = torch.cat((window, x[t].double()[:, None]), dim=1)
            total = (window * taps).sum(dim=1) + offset
            outputs.append(F.silu(total) if silu else total)
            window = window[:, window.shape[1] - (width - 1) :]
            depth += 1
            if (row, depth) in kept:
                conv_pool[kept[row, depth]] = window.to(conv_pool.dtype)
        conv_pool[write_slots[row]] = window.to(conv_pool.dtype)
    return torch.stack(outputs) if outputs else x.double()


def _initial_window(conv_pool: Tensor, read_slots: Tensor, has_initial: Tensor | None) -> Tensor:
    """Return each row's window, [B, C, W - 1] float32; zeros where it has none, without multiplying
    what the slot holds."""
    window = conv_pool.index_select(0, read_slots).float()
    if has_initial is None:
        return window
    return torch.where(has_initial[:, None, None], window, 0.0)


def _write_window(conv_pool: Tensor, slots: Tensor, window: Tensor) -> None:
    """Store windows [n, W - 1, C] float32 in their slots."""
    conv_pool.index_copy_(0, slots, window.transpose(1, 2).to(conv_pool.dtype))
