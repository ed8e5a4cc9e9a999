"""Kernels written in Triton, for a GPU. Importing this module loads Triton's compiler."""

import triton

from baton.kernels.base import AttentionKind, Kernels
from baton.kernels.torch_kernels import TorchKernels
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.compiler import COMPILATIONS
from baton.kernels.triton.conv1d import gated_conv_step, plan_gated_conv_prefill
from baton.kernels.triton.delta_mixer import gated_delta_step, plan_delta_prefill
from baton.kernels.triton.elementwise import geglu, relu2, sigmoid_gated, swiglu
from baton.kernels.triton.fp8_linear import linear
from baton.kernels.triton.kv_write import kv_write, latent_write
from baton.kernels.triton.mamba2 import mamba2_step, plan_mamba2_prefill
from baton.kernels.triton.mla import mla_decode
from baton.kernels.triton.mla_prefill import mla_prefill
from baton.kernels.triton.moe import experts_relu2, experts_swiglu
from baton.kernels.triton.moe_routing import (
    route_sigmoid_grouped,
    route_softmax_grouped,
    route_softmax_topk,
)
from baton.kernels.triton.norm import rms_norm
from baton.kernels.triton.rope import apply_partial_rope, apply_rope
from baton.kernels.triton.sampling import add_token_counts, apply_penalties, sample_tokens
from baton.kernels.triton.verify import (
    gated_conv_commit,
    gated_conv_verify,
    gated_delta_commit,
    gated_delta_verify,
    mamba2_commit,
    mamba2_verify,
)


class TritonKernels(Kernels):
    """The kernels in Triton. None of them reads the device on the host.

    Torch keeps whole matrix products and what is a single launch there already.
    """

    LEFT_TO_TORCH = frozenset(
        {
            "embedding", "router_logits", "add_scaled", "scaled", "concat", "select_rows",
            "square_sums", "norm_by_sums", "guess_ngrams", "guess_tree",
            "mla_query", "from_latent",
        }
    )  # fmt: skip
    replayable = True
    reads_fp8_words = True
    trees = True

    def __init__(self) -> None:
        COMPILATIONS.watch()

    @property
    def compilations(self) -> int | None:
        """Return the variants compiled so far; None where kernels are interpreted."""
        return None if triton.knobs.runtime.interpret else COMPILATIONS.count

    # The size of what a prompt's latents expand to must be known on the host.
    needs_cpu_seq_lens = frozenset({AttentionKind.LATENT})

    embedding = staticmethod(TorchKernels.embedding)
    linear = staticmethod(linear)
    router_logits = staticmethod(TorchKernels.router_logits)
    rms_norm = staticmethod(rms_norm)
    square_sums = staticmethod(TorchKernels.square_sums)
    norm_by_sums = staticmethod(TorchKernels.norm_by_sums)
    swiglu = staticmethod(swiglu)
    geglu = staticmethod(geglu)
    relu2 = staticmethod(relu2)
    sigmoid_gated = staticmethod(sigmoid_gated)
    add_scaled = staticmethod(TorchKernels.add_scaled)
    scaled = staticmethod(TorchKernels.scaled)
    concat = staticmethod(TorchKernels.concat)
    select_rows = staticmethod(TorchKernels.select_rows)
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
    mla_query = staticmethod(TorchKernels.mla_query)
    from_latent = staticmethod(TorchKernels.from_latent)
    mla_decode = staticmethod(mla_decode)
    mla_prefill = staticmethod(mla_prefill)

    gated_conv_step = staticmethod(gated_conv_step)
    plan_gated_conv_prefill = staticmethod(plan_gated_conv_prefill)
    mamba2_step = staticmethod(mamba2_step)
    plan_mamba2_prefill = staticmethod(plan_mamba2_prefill)
    gated_delta_step = staticmethod(gated_delta_step)
    plan_delta_prefill = staticmethod(plan_delta_prefill)

    guess_ngrams = staticmethod(TorchKernels.guess_ngrams)
    guess_tree = staticmethod(TorchKernels.guess_tree)
    gated_conv_verify = staticmethod(gated_conv_verify)
    gated_conv_commit = staticmethod(gated_conv_commit)
    mamba2_verify = staticmethod(mamba2_verify)
    mamba2_commit = staticmethod(mamba2_commit)
    gated_delta_verify = staticmethod(gated_delta_verify)
    gated_delta_commit = staticmethod(gated_delta_commit)

    add_token_counts = staticmethod(add_token_counts)
    apply_penalties = staticmethod(apply_penalties)
    sample_tokens = staticmethod(sample_tokens)
