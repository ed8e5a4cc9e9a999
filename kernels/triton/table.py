"""The kernels of a GPU; what is not named here is torch's, whole matrix products above all."""

from dataclasses import replace

from baton.kernels.dispatch import TORCH, AttentionKind, Kernels
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.conv1d import gated_conv_step, plan_gated_conv_prefill
from baton.kernels.triton.delta_mixer import gated_delta_step, plan_delta_prefill
from baton.kernels.triton.elementwise import geglu, relu2, sigmoid_gated, swiglu
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
from baton.kernels.triton.rope import apply_rope, rotate_tails
from baton.kernels.triton.sampling import add_token_counts, apply_penalties, sample_tokens
from baton.kernels.triton.state_copy import copy_slots

TRITON: Kernels = replace(
    TORCH,
    needs_cpu_seq_lens=frozenset({AttentionKind.LATENT}),  # what its prompts expand to has a size
    rms_norm=rms_norm,
    swiglu=swiglu,
    geglu=geglu,
    relu2=relu2,
    sigmoid_gated=sigmoid_gated,
    apply_rope=apply_rope,
    kv_write=kv_write,
    latent_write=latent_write,
    rotate_tails=rotate_tails,
    paged_attn_prefill=paged_attn_prefill,
    paged_attn_decode=paged_attn_decode,
    mla_decode=mla_decode,
    mla_prefill=mla_prefill,
    route_softmax_topk=route_softmax_topk,
    route_softmax_grouped=route_softmax_grouped,
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
    replayable=True,
)
