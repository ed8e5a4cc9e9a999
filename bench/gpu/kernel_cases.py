"""One call of each GPU kernel at the sizes of a model, for timing and for ahead-of-time compiling.

On the device "meta" no tensor is allocated and no kernel runs: `compile_for` (bench/gpu/aot.py)
intercepts the launches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.bench.gpu.maker import LAYERS, WINDOW, Maker
from baton.bench.gpu.sizes import Sizes
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.gated_delta import CHUNK
from baton.kernels.linear import ExpertWeight
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.rope import rope_cache
from baton.kernels.triton import conv1d, delta_mixer, mamba2, verify
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.elementwise import geglu, relu2, sigmoid_gated, swiglu
from baton.kernels.triton.fp8_linear import linear
from baton.kernels.triton.kv_write import kv_write
from baton.kernels.triton.mla import mla_decode
from baton.kernels.triton.mla_prefill import mla_prefill
from baton.kernels.triton.moe import experts_swiglu
from baton.kernels.triton.moe_routing import (
    route_sigmoid_grouped,
    route_softmax_grouped,
    route_softmax_topk,
)
from baton.kernels.triton.norm import rms_norm
from baton.kernels.triton.rope import apply_partial_rope, apply_rope
from baton.kernels.triton.sampling import add_token_counts, apply_penalties, sample_tokens
from baton.kernels.triton.ssd import chunk_tokens


@dataclass(frozen=True)
class KernelCase:
    """One call of a kernel.

    bytes: the least that it must read and write. flops: the least multiplications and additions.
    """

    name: str
    run: Callable[[], object]
    bytes: int
    flops: int = 0


def cases(sizes: Sizes, make: Maker) -> list[KernelCase]:
    """Return a case for every kernel that layers of these sizes run."""
    found = _small(sizes, make) + _sampling(sizes, make)
    if sizes.mamba is not None:
        found += _mamba(sizes, sizes.mamba, make)
    if sizes.delta is not None:
        found += _delta(sizes, sizes.delta, make)
    if sizes.conv is not None:
        found += _conv(sizes, sizes.conv, make)
    if sizes.attention is not None:
        found += _attention(sizes, sizes.attention, make)
    if sizes.latent is not None:
        found += _latent(sizes, sizes.latent, make)
    if sizes.moe is not None:
        found += _moe(sizes, sizes.moe, make)
    return found


def _mamba(sizes: Sizes, shape: tuple[int, int, int, int, int], make: Maker) -> list[KernelCase]:
    heads, head_dim, groups, state, chunk = shape
    inner, width = heads * head_dim, 4
    channels = inner + 2 * groups * state
    weights = Mamba2Weights(
        conv_weight=make.wide(channels, width),
        conv_bias=make.wide(channels),
        A=-make.wide(heads).abs(),
        D=make.wide(heads),
        dt_bias=make.wide(heads),
        norm_weight=make.wide(inner),
        head_dim=head_dim,
        groups=groups,
        d_state=state,
        eps=1e-5,
        dt_limit=(0.0, float("inf")),
    )
    rows, columns = sizes.decode_rows, sum(weights.splits)
    conv_pools = make.pools(rows, channels, width - 1)
    ssm_pools = make.pools(rows, heads, head_dim, state, dtype=torch.float32)
    conv_pool, ssm_pool = conv_pools[0], ssm_pools[0]
    slots = make.slots(rows)
    token, prompt = make.floats(rows, columns), make.floats(sizes.prompt, columns)
    accepted = make.accepted(rows)
    layers = Mamba2Layers.of([weights] * LAYERS)
    window, kept = make.floats(WINDOW * rows, columns), make.kept(rows, columns - inner)
    own = kept[0]
    rows_of = mamba2.plan_mamba2_prefill((0, sizes.prompt), (0,), width, chunk, None)
    plan = rows_of.on(make.device)(make.rows([sizes.prompt]))
    size = make.dtype.itemsize
    per_state = heads * head_dim * state
    # What enters each chunk is written and read.
    states = 2 * size * per_state * -(-sizes.prompt // chunk_tokens(chunk))
    return [
        KernelCase(
            "mamba2_step",
            lambda: mamba2.mamba2_step(weights, token, conv_pool, ssm_pool, slots, slots),
            rows * (8 * per_state + size * (2 * channels * (width - 1) + columns + inner)),
        ),
        KernelCase(
            "mamba2_verify",
            lambda: verify.mamba2_verify(weights, window, conv_pool, ssm_pool, slots, None, own),
            rows * (4 * per_state + size * (channels * (width - 1) + WINDOW * (columns + inner))),
        ),
        KernelCase(
            "mamba2_commit",
            lambda: verify.mamba2_commit(layers, kept, conv_pools, ssm_pools, accepted),
            LAYERS
            * rows
            * (8 * per_state + size * (channels * (width - 1) + WINDOW * kept.shape[2])),
        ),
        KernelCase(
            "mamba2_prefill",
            lambda: plan(weights, prompt, conv_pool, ssm_pool),
            states + sizes.prompt * size * (columns + inner),
            sizes.prompt * heads * (chunk * (state + head_dim) + 4 * head_dim * state),
        ),
    ]


def _delta(sizes: Sizes, shape: tuple[int, int, int, int], make: Maker) -> list[KernelCase]:
    key_heads, heads, K, V = shape
    width, channels = 4, 2 * key_heads * K + heads * V
    decays = heads * K if sizes.channel_decay else heads
    weights = DeltaWeights(
        conv_weight=make.wide(channels, width),
        A=-make.wide(heads).abs(),
        dt_bias=make.wide(decays),
        norm_weight=make.wide(V),
        key_heads=key_heads,
        key_dim=K,
        eps=1e-6,
        silu_gate=not sizes.channel_decay,
    )
    rows, per_state = sizes.decode_rows, heads * K * V
    conv_pools = make.pools(rows, channels, width - 1)
    pools = make.pools(rows, heads, K, V, dtype=torch.float32)
    conv_pool, pool, slots = conv_pools[0], pools[0], make.slots(rows)

    def inputs(tokens: int) -> DeltaInputs:
        columns = (channels, heads * V, heads, decays)
        return DeltaInputs(*(make.floats(tokens, size) for size in columns))

    accepted = make.accepted(rows)
    layers = DeltaLayers.of([weights] * LAYERS)
    window, kept = inputs(WINDOW * rows), make.kept(rows, channels + heads + decays)
    own = kept[0]
    token, prompt, ragged = inputs(rows), inputs(sizes.prompt), make.rows([sizes.prompt])
    lens = (ragged.cu_seqlens_host, ragged.prefix_lens_host)
    plan = delta_mixer.plan_delta_prefill(*lens, width, None).on(make.device)(ragged)
    size = make.dtype.itemsize
    one = size * (channels + 2 * heads * V + heads + decays)  # a token's inputs and output
    between = 2 * size * (per_state // CHUNK + heads * (K + V))  # written, then read
    return [
        KernelCase(
            "delta_step",
            lambda: delta_mixer.gated_delta_step(weights, token, conv_pool, pool, slots, slots),
            rows * (8 * per_state + one + 2 * size * channels * (width - 1)),
        ),
        KernelCase(
            "delta_verify",
            lambda: verify.gated_delta_verify(weights, window, conv_pool, pool, slots, None, own),
            rows * (4 * per_state + WINDOW * one + size * channels * (width - 1)),
        ),
        KernelCase(
            "delta_commit",
            lambda: verify.gated_delta_commit(layers, kept, conv_pools, pools, accepted),
            LAYERS
            * rows
            * (8 * per_state + size * (channels * (width - 1) + WINDOW * kept.shape[2])),
        ),
        KernelCase(
            "delta_prefill",
            lambda: plan(weights, prompt, conv_pool, pool),
            sizes.prompt * (one + between),
            sizes.prompt * heads * (2 * CHUNK * (2 * K + 2 * V) + 8 * K * V),
        ),
    ]


def _conv(sizes: Sizes, width: int, make: Maker) -> list[KernelCase]:
    channels, rows = sizes.hidden, sizes.decode_rows
    weight, slots = make.wide(channels, width), make.slots(rows)
    pools = make.pools(rows, channels, width - 1)
    pool = pools[0]
    token, prompt = make.floats(rows, 3 * channels), make.floats(sizes.prompt, 3 * channels)
    accepted = make.accepted(rows)
    window, kept = make.floats(WINDOW * rows, 3 * channels), make.kept(rows, channels)
    own = kept[0]
    rows_of = conv1d.plan_gated_conv_prefill((0, sizes.prompt), (0,), width, None)
    plan = rows_of.on(make.device)(make.rows([sizes.prompt]))
    size = make.dtype.itemsize * channels
    return [
        KernelCase(
            "conv_step",
            lambda: conv1d.gated_conv_step(token, weight, None, pool, slots, slots),
            rows * size * (4 + 2 * (width - 1)),
        ),
        KernelCase(
            "conv_verify",
            lambda: verify.gated_conv_verify(window, weight, None, pool, slots, None, own),
            rows * size * (5 * WINDOW + width - 1),
        ),
        KernelCase(
            "conv_commit",
            lambda: verify.gated_conv_commit(kept, width, pools, accepted),
            LAYERS * rows * size * 2 * (width - 1),
        ),
        KernelCase(
            "conv_prefill", lambda: plan(prompt, weight, None, pool), 4 * sizes.prompt * size
        ),
    ]


def _latent(sizes: Sizes, shape: tuple[int, int, int, int], make: Maker) -> list[KernelCase]:
    heads, rank, rotated, plain = shape
    rows, width, page_size = sizes.decode_rows, rank + rotated, sizes.page_size
    held = -(-sizes.context // page_size)
    pool = make.floats(rows * held + 1, page_size, width)
    tables = make.ints(list(range(1, rows * held + 1))).view(rows, held).int()
    own, first = make.slots(rows) - 1, make.ints([0])
    lens, q = make.ints([sizes.context] * rows), make.floats(rows, 1, heads, width)
    size, tokens, scale = make.dtype.itemsize, sizes.prompt, width**-0.5
    cache = rope_cache(make.wide(rotated // 2).abs(), sizes.context + 1)
    # Prompts share pages if there are too few: their contents do not affect the time.
    pages = [page % (rows * held) + 1 for page in range(-(-tokens // page_size))]
    prompt_table, prompt_lens = make.ints(pages).view(1, -1).int(), make.ints([tokens])
    prompt_q, up = make.floats(tokens, heads, plain + rotated), make.floats(heads, 2 * plain, rank)
    starts = make.ints([0, tokens])
    expanding = 4 * plain * rank
    return [
        KernelCase(
            "mla_decode",
            lambda: mla_decode(q, pool, tables, own, lens, (), rank, scale),
            rows * size * (sizes.context * width + heads * (width + rank)),
        ),
        KernelCase(
            "mla_prefill",
            lambda: mla_prefill(
                prompt_q[..., :plain], prompt_q[..., plain:], pool, up, prompt_table, first,
                starts, (0, tokens), prompt_lens, (tokens,), scale,
            ),
            tokens * size * (width + heads * (2 * plain + rotated)),
            tokens * heads * (expanding + tokens * (2 * plain + rotated)),
        ),
        KernelCase(
            "apply_partial_rope",
            lambda: apply_partial_rope(q[:, 0], rotated, cache, lens, True),
            rows * (2 * size * heads * rotated + 4 * rotated),
        ),
    ]  # fmt: skip


def _moe(sizes: Sizes, shape: tuple[int, int, int], make: Maker) -> list[KernelCase]:
    experts, top_k, inner = shape
    shapes = (experts, 2 * inner, sizes.hidden), (experts, sizes.hidden, inner)
    found, size = [], make.dtype.itemsize
    for name, tokens, weight_bytes in (
        ("moe_decode", sizes.decode_rows, size),
        ("moe_prefill", sizes.prompt, size),
        ("moe_decode_fp8", sizes.decode_rows, 1),
        ("moe_prefill_fp8", sizes.prompt, 1),
    ):
        x, logits = make.floats(tokens, sizes.hidden), make.floats(tokens, experts)
        of_kind = make.fp8 if name.endswith("fp8") else make.floats
        weights: list[ExpertWeight] = [of_kind(*shape) for shape in shapes]

        def run(
            x: Tensor = x, logits: Tensor = logits, pair: list[ExpertWeight] = weights
        ) -> Tensor:
            return experts_swiglu(x, *route_softmax_topk(logits, top_k), *pair)

        used = min(experts, tokens * top_k)  # at most this many; all of them if the tokens are many
        read = weight_bytes * used * 3 * inner * sizes.hidden + size * tokens * 2 * sizes.hidden
        flops = tokens * top_k * 6 * inner * sizes.hidden
        found.append(KernelCase(name, run, read, flops))
    correction, logits = make.wide(experts), make.wide(tokens, experts)
    found.append(
        KernelCase(
            "route_grouped",
            lambda: route_sigmoid_grouped(logits, correction, top_k, 1, 1, True, 2.5),
            tokens * 4 * experts,
        )
    )
    found.append(
        KernelCase(
            "route_softmax_grouped",
            lambda: route_softmax_grouped(logits, top_k, 1, 1, False, 16.0),
            tokens * 4 * experts,
        )
    )
    return found


def _sampling(sizes: Sizes, make: Maker) -> list[KernelCase]:
    rows, vocab = sizes.decode_rows, sizes.vocab
    logits, ones = make.wide(rows, vocab), make.wide(rows).abs() + 1
    each, shares = make.slots(rows) - 1, ones * 0 + 0.9
    filters = (each * 0 + 50, shares, shares * 0.01)
    counts = torch.zeros((rows, vocab), dtype=torch.int32, device=make.device)

    def penalise() -> None:
        add_token_counts(counts, each, each)
        apply_penalties(logits, each, counts, each, ones, shares, shares)

    return [
        KernelCase(
            "sample",
            lambda: sample_tokens(logits, each, ones, each, each, None),
            rows * 4 * vocab,
        ),
        KernelCase(
            "sample_filtered",
            lambda: sample_tokens(logits, each, ones, each, each, filters),
            rows * 4 * vocab,
        ),
        KernelCase("penalties", penalise, rows * 12 * vocab),
    ]


def _attention(sizes: Sizes, shape: tuple[int, int, int], make: Maker) -> list[KernelCase]:
    heads, kv_heads, width = shape
    rows, tokens, page_size = sizes.decode_rows, sizes.prompt, sizes.page_size
    held = -(-sizes.context // page_size)
    pages = rows * held + 1
    pool = make.floats(pages, 2, page_size, kv_heads, width)
    k_pool, v_pool = pool[:, 0], pool[:, 1]
    tables = make.ints(list(range(1, pages))).view(rows, held).int()
    own, first = make.slots(rows) - 1, make.ints([0])
    lens = make.ints([sizes.context] * rows)
    q = make.floats(rows, heads, width)
    kv = make.floats(rows, kv_heads, width)
    last = make.ints([held * (row + 1) for row in range(rows)])
    scale = width**-0.5
    prompt_q = make.floats(tokens, heads, width)
    prompt_pages = -(-tokens // page_size)
    prompt_table = make.ints([page % (pages - 1) + 1 for page in range(prompt_pages)])[None].int()
    starts, prompt_lens = make.ints([0, tokens]), make.ints([tokens])
    cache = rope_cache(make.wide(width // 2).abs(), sizes.context + 1)
    size = make.dtype.itemsize
    return [
        KernelCase(
            "attn_decode",
            lambda: paged_attn_decode(q, k_pool, v_pool, tables, own, lens, (), scale),
            rows * size * width * (2 * sizes.context * kv_heads + 2 * heads),
        ),
        KernelCase(
            "attn_prefill",
            lambda: paged_attn_prefill(
                prompt_q, k_pool, v_pool, prompt_table, first, starts, (0, tokens),
                prompt_lens, (tokens,), scale,
            ),
            tokens * size * width * (2 * heads + 2 * kv_heads),
            2 * tokens * tokens * heads * width,
        ),
        KernelCase(
            "kv_write",
            lambda: kv_write(kv, kv, k_pool, v_pool, last, lens % page_size),
            rows * size * 4 * kv_heads * width,
        ),
        KernelCase(
            "rope",
            lambda: apply_rope(q, cache, lens),
            rows * (2 * size * heads * width + 4 * width),
        ),
    ]  # fmt: skip


def _small(sizes: Sizes, make: Maker) -> list[KernelCase]:
    x, weight = make.floats(sizes.prompt, sizes.hidden), make.wide(sizes.hidden)
    wide, matrix = make.floats(sizes.prompt, 2 * sizes.hidden), make.fp8(sizes.hidden, sizes.hidden)
    size, many = make.dtype.itemsize, {"linear_fp8": sizes.decode_rows, "linear_fp8_prompt": len(x)}
    return [
        *(
            KernelCase(
                name,
                partial(linear, x[:rows], matrix),
                matrix.nbytes + 2 * size * rows * sizes.hidden,
                2 * rows * sizes.hidden**2,
            )
            for name, rows in many.items()
        ),
        KernelCase("rms_norm", lambda: rms_norm(x, weight, 1e-5), 2 * x.nbytes),
        KernelCase("swiglu", lambda: swiglu(wide), 3 * x.nbytes),
        KernelCase("geglu", lambda: geglu(wide), 3 * x.nbytes),
        KernelCase("relu2", lambda: relu2(x), 2 * x.nbytes),
        KernelCase("gate", lambda: sigmoid_gated(x, x), 3 * x.nbytes),
    ]
