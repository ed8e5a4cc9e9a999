"""Calls of kernels at the sizes of a model, made alike for each implementation of `Kernels`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from baton.bench.gpu.maker import Maker
from baton.bench.gpu.sizes import Sizes
from baton.kernels.base import Kernels
from baton.kernels.delta_mixer import DeltaInputs, DeltaWeights
from baton.kernels.mamba2 import Mamba2Weights

Run = Callable[[Kernels, list[Tensor]], Tensor]
# Bounds on |ours - torch's| / |torch's|, by the dtype of activations.
_BOUND = {torch.float32: 2e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class ParityCase:
    """One call. run: of kernels and copies of `pools`, which it may write. bound: on the relative
    distance of its result, and of the pools. moved: another call that must give the same result,
    and slots `moved_by` further on what this one leaves in place."""

    name: str
    run: Run
    pools: tuple[Tensor, ...]
    bound: float
    moved: Run | None = None
    moved_by: int = 0


def parity_cases(sizes: Sizes, make: Maker) -> list[ParityCase]:
    """Return the calls of all kernels that layers of these sizes run, but for element-wise ones."""
    found: list[ParityCase] = []
    if sizes.mamba is not None:
        for dtype in (torch.float32, torch.bfloat16):
            found += _mamba(sizes, sizes.mamba, make, dtype)
    if sizes.delta is not None:
        found += _delta(sizes, sizes.delta, make)
    if sizes.attention is not None:
        found += _attention(sizes, sizes.attention, make)
    if sizes.latent is not None:
        found += _latent(sizes, sizes.latent, make)
    if sizes.moe is not None:
        found += _moe(sizes, sizes.moe, make)
    return found


def _mamba(
    sizes: Sizes, shape: tuple[int, int, int, int, int], make: Maker, states: torch.dtype
) -> list[ParityCase]:
    heads, head_dim, groups, state, chunk = shape
    inner, width = heads * head_dim, 4
    channels = inner + 2 * groups * state
    weights = Mamba2Weights(
        conv_weight=make.wide(channels, width) / width,
        conv_bias=make.wide(channels) / width,
        A=-make.wide(heads).abs() - 0.1,
        D=make.wide(heads),
        dt_bias=make.wide(heads) - 3,
        norm_weight=make.wide(inner),
        head_dim=head_dim,
        groups=groups,
        d_state=state,
        eps=1e-5,
        dt_limit=(0.0, float("inf")),
    )
    rows, tokens = sizes.decode_rows, sizes.prompt
    pools = (
        make.floats(2 * rows + 1, channels, width - 1),
        make.floats(2 * rows + 1, heads, head_dim, state, dtype=states),
    )
    token, prompt = (make.floats(count, sum(weights.splits)) for count in (rows, tokens))
    slots = make.slots(rows)
    ragged = make.rows([tokens - tokens // 3, tokens // 3])
    lens = ragged.cu_seqlens_host, ragged.prefix_lens_host

    def step(written: Tensor, kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.mamba2_step(weights, token, own[0], own[1], slots, written, None)

    def prefill(kernels: Kernels, own: list[Tensor]) -> Tensor:
        plan = kernels.plan_mamba2_prefill(*lens, width, chunk, None)
        return plan.on(make.device)(ragged)(weights, prompt, own[0], own[1])

    bound = _BOUND[make.dtype]
    kind = str(states).removeprefix("torch.")
    elsewhere = partial(step, slots + rows)
    return [
        ParityCase(
            f"mamba2_step, {kind} states", partial(step, slots), pools, bound, elsewhere, rows
        ),
        ParityCase(f"mamba2_prefill, {kind} states", prefill, pools, bound),
    ]


def _delta(sizes: Sizes, shape: tuple[int, int, int, int], make: Maker) -> list[ParityCase]:
    key_heads, heads, K, V = shape
    width, channels = 4, 2 * key_heads * K + heads * V
    decays = heads * K if sizes.channel_decay else heads
    weights = DeltaWeights(
        conv_weight=make.wide(channels, width),
        A=-make.wide(heads).abs() - 0.01,
        dt_bias=make.wide(decays),
        norm_weight=make.wide(V),
        key_heads=key_heads,
        key_dim=K,
        eps=1e-6,
        silu_gate=not sizes.channel_decay,
    )
    rows, tokens = sizes.decode_rows, sizes.prompt
    pools = (
        make.floats(2 * rows + 1, channels, width - 1),
        make.wide(2 * rows + 1, heads, K, V) / 8,
    )

    def inputs(count: int) -> DeltaInputs:
        return DeltaInputs(*(make.floats(count, n) for n in (channels, heads * V, heads, decays)))

    token, prompt, slots = inputs(rows), inputs(tokens), make.slots(rows)
    ragged = make.rows([tokens - tokens // 3, tokens // 3])
    lens = ragged.cu_seqlens_host, ragged.prefix_lens_host

    def step(written: Tensor, kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.gated_delta_step(weights, token, own[0], own[1], slots, written, None)

    def prefill(kernels: Kernels, own: list[Tensor]) -> Tensor:
        plan = kernels.plan_delta_prefill(*lens, width, None)
        return plan.on(make.device)(ragged)(weights, prompt, own[0], own[1])

    bound = 1.5 * _BOUND[make.dtype]  # of prompts, whose inverses are rounded once more
    elsewhere = partial(step, slots + rows)
    return [
        ParityCase("delta_step", partial(step, slots), pools, bound, elsewhere, rows),
        ParityCase("delta_prefill", prefill, pools, bound),
    ]


def _tables(make: Maker, lens: list[int], page_size: int) -> tuple[Tensor, int]:
    """Return block tables [rows, most pages] int32 of pages in a random order, and how many pages a
    pool needs."""
    held = [-(-length // page_size) for length in lens]
    pages = iter((torch.randperm(sum(held)) + 1).tolist())
    tables = [[next(pages) for _ in range(count)] + [0] * (max(held) - count) for count in held]
    return torch.tensor(tables, dtype=torch.int32).to(make.device), sum(held) + 1


def _contexts(sizes: Sizes) -> list[int]:
    """Return the tokens of each row: none like another, few at an end of a page."""
    rows = sizes.decode_rows
    return [max(1, sizes.context * (row + 1) // rows - row) for row in range(rows)]


def _prompts(lens: list[int], make: Maker) -> tuple[Tensor, tuple[int, ...], Tensor, int]:
    """Return the starts of two prompts, which are the later halves of the last rows, on the device
    and on the host, those rows, and all tokens."""
    new = [max(1, length // 2) for length in lens[-2:]]
    starts = (0, *accumulate(new))
    last = make.ints(list(range(len(lens)))[-2:])
    return make.ints(list(starts)), starts, last, starts[-1]


def _attention(sizes: Sizes, shape: tuple[int, int, int], make: Maker) -> list[ParityCase]:
    heads, kv_heads, width = shape
    lens = _contexts(sizes)
    tables, pages = _tables(make, lens, sizes.page_size)
    pool = make.floats(pages, 2, sizes.page_size, kv_heads, width)
    k_pool, v_pool = pool[:, 0], pool[:, 1]
    rows, kv_lens = make.slots(len(lens)) - 1, make.ints(lens)
    starts, starts_host, last, tokens = _prompts(lens, make)
    q, prompt_q = make.floats(len(lens), heads, width), make.floats(tokens, heads, width)

    def decode(kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.paged_attn_decode(
            q, k_pool, v_pool, tables, rows, kv_lens, tuple(lens), width**-0.5
        )

    def prefill(kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.paged_attn_prefill(
            prompt_q, k_pool, v_pool, tables, last, starts, starts_host, kv_lens[-2:],
            tuple(lens[-2:]), width**-0.5,
        )  # fmt: skip

    bound = _BOUND[make.dtype]
    return [
        ParityCase("attn_decode", decode, (), bound),
        ParityCase("attn_prefill after a prefix", prefill, (), bound),
    ]


def _latent(sizes: Sizes, shape: tuple[int, int, int, int], make: Maker) -> list[ParityCase]:
    heads, rank, rotated, plain = shape
    lens = _contexts(sizes)
    tables, pages = _tables(make, lens, sizes.page_size)
    pool = make.floats(pages, sizes.page_size, rank + rotated)
    rows, kv_lens = make.slots(len(lens)) - 1, make.ints(lens)
    starts, starts_host, last, tokens = _prompts(lens, make)
    q = make.floats(len(lens), 1, heads, rank + rotated)
    prompt_q = make.floats(tokens, heads, plain + rotated)
    up = make.floats(heads, 2 * plain, rank) / 16
    scale = (plain + rotated) ** -0.5

    def decode(kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.mla_decode(q, pool, tables, rows, kv_lens, tuple(lens), rank, scale)

    def prefill(kernels: Kernels, own: list[Tensor]) -> Tensor:
        return kernels.mla_prefill(
            prompt_q[..., :plain], prompt_q[..., plain:], pool, up, tables, last, starts,
            starts_host, kv_lens[-2:], tuple(lens[-2:]), scale,
        )  # fmt: skip

    bound = _BOUND[make.dtype]
    return [
        ParityCase("mla_decode", decode, (), bound),
        ParityCase("mla_prefill after a prefix", prefill, (), bound),
    ]


def _moe(sizes: Sizes, shape: tuple[int, int, int], make: Maker) -> list[ParityCase]:
    """Return calls of all sizes of blocks: by the pairs of an expert."""
    experts, top_k, inner = shape
    w_in = make.floats(experts, 2 * inner, sizes.hidden) / sizes.hidden**0.5
    w_out = make.floats(experts, sizes.hidden, inner) / inner**0.5

    def case(tokens: int) -> ParityCase:
        x, logits = make.floats(tokens, sizes.hidden), make.wide(tokens, experts)
        chosen = logits.topk(top_k).indices
        weights = logits.gather(1, chosen).softmax(-1)

        def through(kernels: Kernels, own: list[Tensor]) -> Tensor:
            return kernels.experts_swiglu(x, weights, chosen, w_in, w_out)

        return ParityCase(f"experts_swiglu, {tokens} tokens", through, (), _BOUND[make.dtype])

    return [case(tokens) for tokens in sorted({1, 7, sizes.decode_rows, sizes.prompt})]
