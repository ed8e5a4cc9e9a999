"""Kernels of the native library, for float32 activations on a CPU."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from baton.kernels.attention import (
    kv_write_native,
    paged_attn_decode_native,
    paged_attn_prefill_native,
)
from baton.kernels.base import Kernels
from baton.kernels.conv1d import (
    gated_conv_step_native,
    plan_gated_conv_prefill_native,
)
from baton.kernels.delta_mixer import (
    gated_delta_step_native,
    plan_delta_prefill_native,
)
from baton.kernels.elementwise import (
    add_scaled_native,
    concat_native,
    geglu_native,
    relu2_native,
    scaled_native,
    select_rows_native,
    sigmoid_gated_native,
    swiglu_native,
)
from baton.kernels.linear import embedding_native, linear_native, router_logits_native
from baton.kernels.mamba2 import (
    mamba2_step_native,
    plan_mamba2_prefill_native,
)
from baton.kernels.mla import (
    apply_partial_rope_native,
    from_latent_native,
    latent_write_native,
    mla_decode_native,
    mla_prefill_native,
    mla_query_native,
)
from baton.kernels.moe import (
    experts_relu2_native,
    experts_swiglu_native,
    route_sigmoid_grouped_native,
    route_softmax_grouped_native,
    route_softmax_topk_native,
)
from baton.kernels.native.recorder import Native
from baton.kernels.ngrams import guess_ngrams_native, guess_tree_native
from baton.kernels.norm import norm_by_sums_native, rms_norm_native, square_sums_native
from baton.kernels.rope import apply_rope_native
from baton.kernels.sampling import sample_tokens_native
from baton.kernels.torch_kernels import TorchKernels
from baton.kernels.verify_native import (
    gated_conv_commit_native,
    gated_conv_verify_native,
    gated_delta_commit_native,
    gated_delta_verify_native,
    mamba2_commit_native,
    mamba2_verify_native,
)

P = ParamSpec("P")
R = TypeVar("R")


def _bound(
    kernel: Callable[Concatenate[Native, P], R],
) -> "Callable[Concatenate[NativeKernels, P], R]":
    """Return the method that gives `kernel` the library."""

    def method(kernels: "NativeKernels", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kernel(kernels.native, *args, **kwargs)

    return method


class NativeKernels(Kernels):
    """The kernels in C++. While the library records, they append to the recording.

    Sampling, some of which is left to torch, runs outside of recorded steps.
    """

    LEFT_TO_TORCH = frozenset({"add_token_counts", "apply_penalties"})
    trees = True

    def __init__(self, native: Native) -> None:
        self._native = native

    @property
    def native(self) -> Native:
        return self._native

    add_token_counts = staticmethod(TorchKernels.add_token_counts)
    apply_penalties = staticmethod(TorchKernels.apply_penalties)
    embedding = _bound(embedding_native)
    linear = _bound(linear_native)
    router_logits = _bound(router_logits_native)
    rms_norm = _bound(rms_norm_native)
    square_sums = _bound(square_sums_native)
    norm_by_sums = _bound(norm_by_sums_native)
    swiglu = _bound(swiglu_native)
    geglu = _bound(geglu_native)
    relu2 = _bound(relu2_native)
    sigmoid_gated = _bound(sigmoid_gated_native)
    add_scaled = _bound(add_scaled_native)
    scaled = _bound(scaled_native)
    concat = _bound(concat_native)
    select_rows = _bound(select_rows_native)
    apply_rope = _bound(apply_rope_native)
    apply_partial_rope = _bound(apply_partial_rope_native)
    route_softmax_topk = _bound(route_softmax_topk_native)
    route_softmax_grouped = _bound(route_softmax_grouped_native)
    route_sigmoid_grouped = _bound(route_sigmoid_grouped_native)
    experts_swiglu = _bound(experts_swiglu_native)
    experts_relu2 = _bound(experts_relu2_native)
    kv_write = _bound(kv_write_native)
    latent_write = _bound(latent_write_native)
    paged_attn_prefill = _bound(paged_attn_prefill_native)
    paged_attn_decode = _bound(paged_attn_decode_native)
    mla_query = _bound(mla_query_native)
    from_latent = _bound(from_latent_native)
    mla_decode = _bound(mla_decode_native)
    mla_prefill = _bound(mla_prefill_native)
    gated_conv_step = _bound(gated_conv_step_native)
    plan_gated_conv_prefill = _bound(plan_gated_conv_prefill_native)
    mamba2_step = _bound(mamba2_step_native)
    plan_mamba2_prefill = _bound(plan_mamba2_prefill_native)
    gated_delta_step = _bound(gated_delta_step_native)
    plan_delta_prefill = _bound(plan_delta_prefill_native)
    guess_ngrams = _bound(guess_ngrams_native)
    guess_tree = _bound(guess_tree_native)
    gated_conv_verify = _bound(gated_conv_verify_native)
    gated_conv_commit = _bound(gated_conv_commit_native)
    mamba2_verify = _bound(mamba2_verify_native)
    mamba2_commit = _bound(mamba2_commit_native)
    gated_delta_verify = _bound(gated_delta_verify_native)
    gated_delta_commit = _bound(gated_delta_commit_native)
    sample_tokens = _bound(sample_tokens_native)
