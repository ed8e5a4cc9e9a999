"""The GPU kernels, one call each, at the sizes of a model: for timing, and for compiling ahead.

On the device "meta" nothing is allocated and nothing may run: `compile_for` (bench/aot.py) takes
the calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from baton.kernels.chunks import RaggedRows
from baton.kernels.mamba2 import Mamba2Weights
from baton.kernels.rope import rope_cache
from baton.kernels.triton import mamba2
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.kv_write import kv_write
from baton.kernels.triton.norm import rms_norm
from baton.kernels.triton.rope import apply_rope


@dataclass(frozen=True)
class Sizes:
    """A model's layers, and the batches that they are timed with."""

    name: str
    hidden: int
    mamba: tuple[int, int, int, int] | None  # heads, head_dim, groups, d_state
    attention: tuple[int, int, int]  # heads, KV heads, head_dim
    vocab: int
    decode_rows: int
    context: int  # tokens that each decoding row holds
    prompt: int  # tokens of one prompt
    page_size: int = 64


NEMOTRON_9B = Sizes(
    "Nemotron-Nano-9B-v2", 4480, (128, 80, 8, 128), (40, 8, 128), 131072, 64, 4096, 8192
)
GRANITE_SMALL = Sizes(
    "Granite-4.0-H-small", 4096, (128, 64, 1, 128), (32, 8, 128), 100352, 64, 4096, 8192
)
TINY = Sizes("tiny", 24, (4, 6, 2, 7), (6, 2, 12), 50, 3, 40, 20, page_size=8)


@dataclass(frozen=True)
class Case:
    """One call. bytes: what it must read and write at least; flops: what it must multiply and add;
    launches: kernels in it."""

    name: str
    run: Callable[[], object]
    bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Maker:
    """Random tensors on a device."""

    device: torch.device
    dtype: torch.dtype

    def floats(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(size, dtype=dtype or self.dtype, device=self.device).normal_()

    def wide(self, *size: int) -> Tensor:
        return self.floats(*size, dtype=torch.float32)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device)

    def slots(self, count: int) -> Tensor:
        return self.ints(list(range(1, count + 1)))

    def rows(self, lengths: list[int]) -> RaggedRows:
        """Prompts from their beginning, in slots 1, 2, ..."""
        starts = (0, *accumulate(lengths))
        slots = self.slots(len(lengths))
        fresh = torch.zeros(len(lengths), dtype=torch.bool, device=self.device)
        lens = (self.ints(list(starts)), starts, (0,) * len(lengths))
        return RaggedRows(*lens, slots, slots, fresh)


def cases(sizes: Sizes, make: Maker) -> list[Case]:
    """Every kernel that a layer of these sizes runs."""
    found = _attention(sizes, make) + _small(sizes, make)
    if sizes.mamba is not None:
        found += _mamba(sizes, sizes.mamba, make)
    return found


def _mamba(sizes: Sizes, shape: tuple[int, int, int, int], make: Maker) -> list[Case]:
    heads, head_dim, groups, state = shape
    inner, width, chunk = heads * head_dim, 4, 256
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
    conv_pool = make.floats(rows + 1, channels, width - 1)
    ssm_pool = make.wide(rows + 1, heads, head_dim, state)
    slots = make.slots(rows)
    token, prompt = make.floats(rows, columns), make.floats(sizes.prompt, columns)
    rows_of = mamba2.plan_mamba2_prefill((0, sizes.prompt), (0,), width, chunk, None)
    plan = rows_of.on(make.device)(make.rows([sizes.prompt]))
    size = make.dtype.itemsize
    per_state = heads * head_dim * state
    states = 4 * 4 * per_state * -(-sizes.prompt // chunk)  # two passes, each read and written
    return [
        Case(
            "mamba2_step",
            lambda: mamba2.mamba2_step(weights, token, conv_pool, ssm_pool, slots, slots),
            rows * (8 * per_state + size * (2 * channels * (width - 1) + columns + inner)),
        ),
        Case(
            "mamba2_prefill",
            lambda: plan(weights, prompt, conv_pool, ssm_pool),
            states + sizes.prompt * size * (columns + inner),
            sizes.prompt * heads * (chunk * (state + head_dim) + 4 * head_dim * state),
        ),
    ]


def _attention(sizes: Sizes, make: Maker) -> list[Case]:
    heads, kv_heads, width = sizes.attention
    rows, tokens, page_size = sizes.decode_rows, sizes.prompt, sizes.page_size
    held = -(-sizes.context // page_size)
    pages = rows * held + 1
    pool = make.floats(pages, 2, page_size, kv_heads, width)
    k_pool, v_pool = pool[:, 0], pool[:, 1]
    tables = make.ints(list(range(1, pages))).view(rows, held)
    lens = make.ints([sizes.context] * rows)
    q = make.floats(rows, heads, width)
    kv = make.floats(rows, kv_heads, width)
    last = make.ints([held * (row + 1) for row in range(rows)])
    scale = width**-0.5
    prompt_q = make.floats(tokens, heads, width)
    prompt_pages = -(-tokens // page_size)
    prompt_table = make.ints([page % (pages - 1) + 1 for page in range(prompt_pages)]).view(1, -1)
    starts, prompt_lens = make.ints([0, tokens]), make.ints([tokens])
    cache = rope_cache(make.wide(width // 2).abs(), sizes.context + 1)
    size = make.dtype.itemsize
    return [
        Case(
            "attn_decode",
            lambda: paged_attn_decode(q, k_pool, v_pool, tables, lens, (), scale),
            rows * size * width * (2 * sizes.context * kv_heads + 2 * heads),
        ),
        Case(
            "attn_prefill",
            lambda: paged_attn_prefill(
                prompt_q, k_pool, v_pool, prompt_table, starts, (0, tokens), prompt_lens,
                (tokens,), scale,
            ),
            tokens * size * width * (2 * heads + 2 * kv_heads),
            2 * tokens * tokens * heads * width,
        ),
        Case(
            "kv_write",
            lambda: kv_write(kv, kv, k_pool, v_pool, last, lens % page_size),
            rows * size * 4 * kv_heads * width,
        ),
        Case(
            "rope",
            lambda: apply_rope(q, cache, lens),
            rows * (2 * size * heads * width + 4 * width),
        ),
    ]  # fmt: skip


def _small(sizes: Sizes, make: Maker) -> list[Case]:
    x, weight = make.floats(sizes.prompt, sizes.hidden), make.wide(sizes.hidden)
    size = make.dtype.itemsize
    return [
        Case(
            "rms_norm",
            lambda: rms_norm(x, weight, 1e-5),
            2 * size * sizes.prompt * sizes.hidden,
        )
    ]
