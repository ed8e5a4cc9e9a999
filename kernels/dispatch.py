"""The one place that decides which implementation of a kernel runs.

A kernel's torch function documents its shapes and dtypes; other implementations stand beside it
and take the same arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from baton.kernels.attention import (
    kv_write,
    kv_write_native,
    paged_attn_decode,
    paged_attn_decode_native,
    paged_attn_prefill,
    paged_attn_prefill_native,
)
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import (
    GatedConvRows,
    gated_conv_step,
    gated_conv_step_native,
    plan_gated_conv_prefill,
    plan_gated_conv_prefill_native,
)
from baton.kernels.delta_mixer import (
    DeltaInputs,
    DeltaRows,
    DeltaWeights,
    gated_delta_step,
    gated_delta_step_native,
    plan_delta_prefill,
    plan_delta_prefill_native,
)
from baton.kernels.elementwise import (
    add_scaled,
    add_scaled_native,
    beside,
    beside_native,
    geglu,
    geglu_native,
    relu2,
    relu2_native,
    scaled,
    scaled_native,
    select_rows,
    select_rows_native,
    sigmoid_gated,
    sigmoid_gated_native,
    swiglu,
    swiglu_native,
)
from baton.kernels.host_plan import HostPlan
from baton.kernels.linear import Matrix, Weight, embedding, embedding_native, linear, linear_native
from baton.kernels.mamba2 import (
    Mamba2Rows,
    Mamba2Weights,
    mamba2_step,
    mamba2_step_native,
    plan_mamba2_prefill,
    plan_mamba2_prefill_native,
)
from baton.kernels.mla import (
    from_latent,
    from_latent_native,
    latent_write,
    latent_write_native,
    mla_decode,
    mla_decode_native,
    mla_prefill,
    mla_prefill_native,
    mla_query,
    mla_query_native,
    rotate_tails,
    rotate_tails_native,
)
from baton.kernels.moe import (
    experts_relu2,
    experts_relu2_native,
    experts_swiglu,
    experts_swiglu_native,
    route_sigmoid_grouped,
    route_sigmoid_grouped_native,
    route_softmax_grouped,
    route_softmax_grouped_native,
    route_softmax_topk,
    route_softmax_topk_native,
)
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native
from baton.kernels.norm import rms_norm, rms_norm_native
from baton.kernels.rope import apply_rope, apply_rope_native
from baton.kernels.sampling import add_token_counts, apply_penalties, sample_tokens
from baton.kernels.state_copy import copy_slots


class KernelChoice(StrEnum):
    AUTO = "auto"  # the fastest that the device has
    TORCH = "torch"


class AttentionKind(StrEnum):
    """What an attention reads: pages of keys and values, or of latents."""

    PAGED = "paged"
    LATENT = "latent"


@dataclass(frozen=True)
class Kernels:
    """One implementation of each kernel that a model calls; see the function of that name.

    needs_cpu_seq_lens: the attentions of these that plan by the lengths of the KV on the host; a
            model that has none of them gets no lengths there
    native: set where these are the native ones; activations are then float32, whatever the
            weights' dtype
    replayable: decode launches the same whatever the lengths are, so that a graph of it serves all
    """

    embedding: Callable[[Tensor, Weight], Tensor]
    linear: Callable[[Tensor, Matrix, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    geglu: Callable[[Tensor], Tensor]
    relu2: Callable[[Tensor], Tensor]
    sigmoid_gated: Callable[[Tensor, Tensor], Tensor]
    add_scaled: Callable[[Tensor, Tensor, float], Tensor]
    scaled: Callable[[Tensor, float], Tensor]
    beside: Callable[[Tensor, Tensor], Tensor]
    select_rows: Callable[[Tensor, Tensor], Tensor]
    apply_rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
    latent_write: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    paged_attn_prefill: Callable[
        [
            Tensor, Tensor, Tensor, Tensor, Tensor, tuple[int, ...], Tensor, tuple[int, ...], float,
        ],
        Tensor,
    ]  # fmt: skip
    paged_attn_decode: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, tuple[int, ...], float], Tensor
    ]
    rotate_tails: Callable[[Tensor, int, Tensor, Tensor, bool], Tensor]
    mla_query: Callable[[Tensor, Tensor, Tensor], Tensor]
    from_latent: Callable[[Tensor, Tensor, int], Tensor]
    mla_decode: Callable[[Tensor, Tensor, Tensor, Tensor, tuple[int, ...], int, float], Tensor]
    mla_prefill: Callable[
        [
            Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, tuple[int, ...], Tensor,
            tuple[int, ...], float,
        ],
        Tensor,
    ]  # fmt: skip
    route_softmax_grouped: Callable[[Tensor, int, int, int, bool, float], tuple[Tensor, Tensor]]
    route_softmax_topk: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    route_sigmoid_grouped: Callable[
        [Tensor, Tensor, int, int, int, bool, float], tuple[Tensor, Tensor]
    ]
    experts_swiglu: Callable[[Tensor, Tensor, Tensor, Weight, Weight], Tensor]
    experts_relu2: Callable[[Tensor, Tensor, Tensor, Weight, Weight], Tensor]
    gated_conv_step: Callable[
        [Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor | None], Tensor
    ]
    plan_gated_conv_prefill: Callable[
        [Sequence[int], Sequence[int], int, SnapshotPlan | None], HostPlan[GatedConvRows]
    ]
    mamba2_step: Callable[
        [Mamba2Weights, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor
    ]
    plan_mamba2_prefill: Callable[
        [Sequence[int], Sequence[int], int, int, SnapshotPlan | None], HostPlan[Mamba2Rows]
    ]
    gated_delta_step: Callable[
        [DeltaWeights, DeltaInputs, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor
    ]
    plan_delta_prefill: Callable[
        [Sequence[int], Sequence[int], int, SnapshotPlan | None], HostPlan[DeltaRows]
    ]
    add_token_counts: Callable[[Tensor, Tensor, Tensor], None]
    apply_penalties: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
    sample_tokens: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor] | None], Tensor
    ]
    copy_slots: Callable[[Tensor, Tensor, Tensor], None]
    replayable: bool
    needs_cpu_seq_lens: frozenset[AttentionKind] = frozenset(AttentionKind)
    native: Native | None = None


TORCH = Kernels(
    embedding=embedding,
    linear=linear,
    rms_norm=rms_norm,
    swiglu=swiglu,
    geglu=geglu,
    relu2=relu2,
    sigmoid_gated=sigmoid_gated,
    add_scaled=add_scaled,
    scaled=scaled,
    beside=beside,
    select_rows=select_rows,
    apply_rope=apply_rope,
    kv_write=kv_write,
    latent_write=latent_write,
    paged_attn_prefill=paged_attn_prefill,
    paged_attn_decode=paged_attn_decode,
    rotate_tails=rotate_tails,
    mla_query=mla_query,
    from_latent=from_latent,
    mla_decode=mla_decode,
    mla_prefill=mla_prefill,
    route_softmax_grouped=route_softmax_grouped,
    route_softmax_topk=route_softmax_topk,
    route_sigmoid_grouped=route_sigmoid_grouped,
    experts_swiglu=experts_swiglu,
    experts_relu2=experts_relu2,
    gated_conv_step=gated_conv_step,
    plan_gated_conv_prefill=plan_gated_conv_prefill,
    mamba2_step=mamba2_step,
    plan_mamba2_prefill=plan_mamba2_prefill,
    gated_delta_step=gated_delta_step,
    plan_delta_prefill=plan_delta_prefill,
    add_token_counts=add_token_counts,
    apply_penalties=apply_penalties,
    sample_tokens=sample_tokens,
    copy_slots=copy_slots,
    replayable=False,
)


def native_kernels(native: Native) -> Kernels:
    """For float32 activations on a CPU."""
    return Kernels(
        embedding=partial(embedding_native, native),
        linear=partial(linear_native, native),
        rms_norm=partial(rms_norm_native, native),
        swiglu=partial(swiglu_native, native),
        geglu=partial(geglu_native, native),
        relu2=partial(relu2_native, native),
        sigmoid_gated=partial(sigmoid_gated_native, native),
        add_scaled=partial(add_scaled_native, native),
        scaled=partial(scaled_native, native),
        beside=partial(beside_native, native),
        select_rows=partial(select_rows_native, native),
        apply_rope=partial(apply_rope_native, native),
        kv_write=partial(kv_write_native, native),
        latent_write=partial(latent_write_native, native),
        paged_attn_prefill=partial(paged_attn_prefill_native, native),
        paged_attn_decode=partial(paged_attn_decode_native, native),
        rotate_tails=partial(rotate_tails_native, native),
        mla_query=partial(mla_query_native, native),
        from_latent=partial(from_latent_native, native),
        mla_decode=partial(mla_decode_native, native),
        mla_prefill=partial(mla_prefill_native, native),
        route_softmax_grouped=partial(route_softmax_grouped_native, native),
        route_softmax_topk=partial(route_softmax_topk_native, native),
        route_sigmoid_grouped=partial(route_sigmoid_grouped_native, native),
        experts_swiglu=partial(experts_swiglu_native, native),
        experts_relu2=partial(experts_relu2_native, native),
        gated_conv_step=partial(gated_conv_step_native, native),
        plan_gated_conv_prefill=partial(plan_gated_conv_prefill_native, native),
        mamba2_step=partial(mamba2_step_native, native),
        plan_mamba2_prefill=partial(plan_mamba2_prefill_native, native),
        gated_delta_step=partial(gated_delta_step_native, native),
        plan_delta_prefill=partial(plan_delta_prefill_native, native),
        add_token_counts=add_token_counts,
        apply_penalties=apply_penalties,
        sample_tokens=sample_tokens,
        copy_slots=copy_slots,
        replayable=False,
        native=native,
    )


def select(device: torch.device, dtype: torch.dtype, choice: KernelChoice) -> Kernels:
    """The kernels for a model of weights in `dtype` on `device`.

    On a GPU Triton's. On a CPU the native ones, where they can be built; a warning says so where
    they cannot.
    """
    if device.type == "cuda" and choice is KernelChoice.AUTO:
        # Triton comes with its compiler, which a CPU's processes should not load.
        from baton.kernels.triton.table import TRITON

        return TRITON
    handled = device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
    if choice is KernelChoice.TORCH or not handled:
        return TORCH
    library = load()
    return TORCH if library is None else native_kernels(Native(library))
