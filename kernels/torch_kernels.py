"""Kernels made of torch operators, for every device and dtype."""

from baton.kernels.attention import kv_write, paged_attn_decode, paged_attn_prefill
from baton.kernels.base import Kernels
from baton.kernels.conv1d import gated_conv_step, plan_gated_conv_prefill
from baton.kernels.delta_mixer import gated_delta_step, plan_delta_prefill
from baton.kernels.elementwise import (
    add_scaled,
    concat,
    geglu,
    relu2,
    scaled,
    select_rows,
    sigmoid_gated,
    swiglu,
)
from baton.kernels.linear import embedding, linear, router_logits
from baton.kernels.mamba2 import mamba2_step, plan_mamba2_prefill
from baton.kernels.mla import (
    apply_partial_rope,
    from_latent,
    latent_write,
    mla_decode,
    mla_prefill,
    mla_query,
)
from baton.kernels.moe import (
    experts_relu2,
    experts_swiglu,
    route_sigmoid_grouped,
    route_softmax_grouped,
    route_softmax_topk,
)
from baton.kernels.ngrams import guess_ngrams, guess_tree
from baton.kernels.norm import norm_by_sums, rms_norm, square_sums
from baton.kernels.rope import apply_rope
from baton.kernels.sampling import add_token_counts, apply_penalties, sample_tokens
from baton.kernels.verify import (
    gated_conv_commit,
    gated_conv_verify,
    gated_delta_commit,
    gated_delta_verify,
    mamba2_commit,
    mamba2_verify,
)


class TorchKernels(Kernels):
    """The kernels in torch. Other implementations name those that they take from here."""

    trees = True

    embedding = staticmethod(embedding)
    linear = staticmethod(linear)
    router_logits = staticmethod(router_logits)
    rms_norm = staticmethod(rms_norm)
    square_sums = staticmethod(square_sums)
    norm_by_sums = staticmethod(norm_by_sums)
    swiglu = staticmethod(swiglu)
    geglu = staticmethod(geglu)
    relu2 = staticmethod(relu2)
    sigmoid_gated = staticmethod(sigmoid_gated)
    add_scaled = staticmethod(add_scaled)
    scaled = staticmethod(scaled)
    concat = staticmethod(concat)
    select_rows = staticmethod(select_rows)
    apply_rope = staticmethod(apply_rope)
    apply_partial_rope = staticmethod(apply_partial_rope)
    route_softmax_topk = staticmethod(route_softmax_topk)
    route_softmax_grouped = staticmethod(route_softmax_grouped)
    route_sigmoid_grouped = staticmethod(route_sigmoid_grouped)
    experts_swiglu = staticmethod(experts_swiglu)
    experts_relu2 = staticmethod(experts_relu2)

    kv_write = staticmethod(kv_write)
    latent_write = staticmethod(latent_write)
    paged_attn_prefill = staticmethod(paged_attn_prefill)
    paged_attn_decode = staticmethod(paged_attn_decode)
    mla_query = staticmethod(mla_query)
    from_latent = staticmethod(from_latent)
    mla_decode = staticmethod(mla_decode)
    mla_prefill = staticmethod(mla_prefill)

    gated_conv_step = staticmethod(gated_conv_step)
    plan_gated_conv_prefill = staticmethod(plan_gated_conv_prefill)
    mamba2_step = staticmethod(mamba2_step)
    plan_mamba2_prefill = staticmethod(plan_mamba2_prefill)
    gated_delta_step = staticmethod(gated_delta_step)
    plan_delta_prefill = staticmethod(plan_delta_prefill)

    guess_ngrams = staticmethod(guess_ngrams)
    guess_tree = staticmethod(guess_tree)
    gated_conv_verify = staticmethod(gated_conv_verify)
    gated_conv_commit = staticmethod(gated_conv_commit)
    mamba2_verify = staticmethod(mamba2_verify)
    mamba2_commit = staticmethod(mamba2_commit)
    gated_delta_verify = staticmethod(gated_delta_verify)
    gated_delta_commit = staticmethod(gated_delta_commit)

    add_token_counts = staticmethod(add_token_counts)
    apply_penalties = staticmethod(apply_penalties)
    sample_tokens = staticmethod(sample_tokens)


TORCH = TorchKernels()
