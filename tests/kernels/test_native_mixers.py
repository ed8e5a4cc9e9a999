"""Native attention, convolutions and Mamba-2 steps against float64, in poisoned memory."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from kernels.native_cases import assert_near, in_float64, random_mixer, strided
from kernels.test_attention import paged_batch
from ragged_batches import assert_pools_match, poisoned_pool, ragged_batch
from torch import Tensor

from baton.kernels.attention import (
    kv_write,
    kv_write_native,
    paged_attn_decode_native,
    paged_attn_prefill_native,
    paged_attn_ref,
)
from baton.kernels.conv1d import gated_conv_step, gated_conv_step_native
from baton.kernels.mamba2 import mamba2_step, mamba2_step_native


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_write(native, rng, dtype):
    pool = torch.randn(6, 4, 5, 3, 10).to(dtype)
    expected = pool.clone()
    k = strided(7, 30, rng).unflatten(1, (3, 10))
    v = torch.randn(7, 3, 10)
    k[0, 0, 0] = torch.inf
    places = rng.sample(range(5, 30), 7)
    pages, offsets = torch.tensor([p // 5 for p in places]), torch.tensor([p % 5 for p in places])
    kv_write(k, v, expected[:, 1], expected[:, 2], pages, offsets)
    kv_write_native(native, k, v, pool[:, 1], pool[:, 2], pages, offsets)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("query_heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("prefixes, page_size", [([0], 16), ([300, 7, 0, 8, 3], 8), ([4, 0], 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(native, rng, prefixes, page_size, query_heads, kv_heads, dtype):
    batch = paged_batch([1] * len(prefixes), prefixes, query_heads, kv_heads, page_size, rng)
    batch = dataclasses.replace(
        batch,
        k_pool=batch.k_pool.to(dtype),
        v_pool=batch.v_pool.to(dtype),
    )
    out = paged_attn_decode_native(native, **batch.decode_arguments(), scale=0.3)
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.3)
    assert_near(out, expected, 5e-6)


@pytest.mark.parametrize("head_dim", [64, 100, 128])
@pytest.mark.parametrize("query_heads, kv_heads", [(15, 3), (8, 1), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_wide_heads_is_the_same_bits_on_every_number_of_threads(
    native, rng, query_heads, kv_heads, head_dim, dtype
):
    prefixes = [rng.randrange(200) for _ in range(3)]
    batch = paged_batch(
        [1] * 3, prefixes, query_heads, kv_heads, rng.choice([4, 16]), rng, head_dim
    )
    batch = dataclasses.replace(
        batch,
        k_pool=batch.k_pool.to(dtype),
        v_pool=batch.v_pool.to(dtype),
    )
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):  # a piece of work has three, one or two of three KV heads
            torch.set_num_threads(count)
            out = paged_attn_decode_native(native, **batch.decode_arguments(), scale=0.1)
            results.append(out.clone())
    finally:
        torch.set_num_threads(threads)
    assert_near(results[0], paged_attn_ref(**batch.prefill_arguments(), scale=0.1), 5e-6)
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("query_heads, kv_heads", [(6, 3), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_context_is_the_same_bits_alone_in_a_batch_and_on_every_number_of_threads(
    native, rng, query_heads, kv_heads, dtype
):
    """Ten rows are whole pieces of work for one thread; two or five threads divide their parts."""
    contexts = [255, 256, 257, 4095, rng.randrange(4100, 6000)]
    contexts += [rng.randrange(900) for _ in range(5)]
    head_dim = rng.choice([40, 64, 96])
    batch = paged_batch([1] * 10, contexts, query_heads, kv_heads, 16, rng, head_dim)
    batch = dataclasses.replace(batch, k_pool=batch.k_pool.to(dtype), v_pool=batch.v_pool.to(dtype))
    arguments = {**batch.decode_arguments(), "scale": 0.2}
    q, table_rows, kv_lens = (arguments.pop(name) for name in ("q", "table_rows", "kv_lens"))

    def attended(rows: slice) -> Tensor:
        out = paged_attn_decode_native(
            native, q[rows], table_rows=table_rows[rows], kv_lens=kv_lens[rows], **arguments
        )
        return out.clone()

    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(attended(slice(0, 10)))
            results.append(torch.cat([attended(slice(row, row + 1)) for row in range(10)]))
    finally:
        torch.set_num_threads(threads)
    assert_near(results[0], paged_attn_ref(**batch.prefill_arguments(), scale=0.2), 5e-6)
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_finds_a_score_far_above_the_others_wherever_it_is(native, rng, dtype):
    """Exponentials of scores that are not relative to the largest overflow, all to the same."""
    context = rng.randrange(150, 300)
    batch = paged_batch([1] * 64, [context] * 64, 1, 1, 16, rng, 32)
    k_pool, v_pool = batch.k_pool.to(dtype), batch.v_pool.to(dtype)
    for row in range(64):
        tables, some = batch.block_tables[batch.table_rows[row]], rng.sample(range(context), 2)
        for position, length in zip(some, (20.0, 40.0), strict=True):
            query = batch.q[row, 0]
            k_pool[tables[position // 16], position % 16, 0] = length * query / query.norm()
    batch = dataclasses.replace(batch, k_pool=k_pool, v_pool=v_pool)
    out = paged_attn_decode_native(native, **batch.decode_arguments(), scale=3.0)
    assert_near(out, paged_attn_ref(**batch.prefill_arguments(), scale=3.0), 5e-6)


@pytest.mark.parametrize("query_heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(
    "lengths, prefixes, page_size",
    [([1], [0], 16), ([5, 1, 90, 0, 17], [0, 63, 3, 4, 150], 4), ([6, 2], [1, 0], 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_prompts(
    native, rng, lengths, prefixes, page_size, query_heads, kv_heads, dtype
):
    batch = paged_batch(lengths, prefixes, query_heads, kv_heads, page_size, rng)
    batch = dataclasses.replace(
        batch,
        k_pool=batch.k_pool.to(dtype),
        v_pool=batch.v_pool.to(dtype),
    )
    out = paged_attn_prefill_native(native, **batch.prefill_arguments(), scale=0.3)
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.3)
    assert_near(out, expected, 5e-6)


def test_a_prompt_in_chunks_is_attended_to_the_same_bits(native, rng):
    length = rng.randrange(130, 200)
    batch = paged_batch([length], [0], 6, 2, 16, rng)

    def attended(first: int, end: int) -> Tensor:
        ints = torch.tensor([0, end - first]), [0, end - first], torch.tensor([end]), [end]
        pools = batch.k_pool, batch.v_pool, batch.block_tables, batch.table_rows
        return paged_attn_prefill_native(native, batch.q[first:end], *pools, *ints, 0.3)

    cuts = [0, *sorted(rng.sample(range(1, length), 3)), length]
    chunks = [attended(first, end) for first, end in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(chunks), attended(0, length))


@pytest.mark.parametrize("query_heads, kv_heads", [(4, 4), (6, 2), (3, 1), (8, 1)])
@pytest.mark.parametrize("head_dim", [8, 20, 32, 64, 80, 96, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_bits_of_a_step_in_a_prompt(
    native, rng, query_heads, kv_heads, head_dim, dtype
):
    """Parts of a context begin every 256 positions, and are longer behind 4,096."""
    totals = [1, 16, 63, 255, 256, 257, 513, 1000, rng.randrange(2, 900)]
    totals += [4096, 4097, 5121] if head_dim == 64 else []
    new = [min(total, rng.choice([1, 33, 70])) for total in totals]
    prefixes = [total - some for total, some in zip(totals, new, strict=True)]
    page_size = rng.choice([4, 16])
    batch = paged_batch(new, prefixes, query_heads, kv_heads, page_size, rng, head_dim)
    batch = dataclasses.replace(batch, k_pool=batch.k_pool.to(dtype), v_pool=batch.v_pool.to(dtype))
    prompts = paged_attn_prefill_native(native, **batch.prefill_arguments(), scale=0.3).clone()
    for row, total in enumerate(totals):
        first, end = batch.cu_seqlens_q_host[row : row + 2]
        lens = [*range(total - (end - first) + 1, total + 1)]
        stepped = paged_attn_decode_native(
            native,
            batch.q[first:end],
            batch.k_pool,
            batch.v_pool,
            batch.block_tables,
            batch.table_rows[row].expand(end - first).contiguous(),
            torch.tensor(lens),
            lens,
            0.3,
        )
        assert torch.equal(prompts[first:end], stepped), total


def test_a_prompt_sees_nothing_of_what_was_computed_before_it(native, rng):
    poison = paged_batch([70], [0], 4, 2, 16, rng)
    batch = paged_batch([9, 3], [40, 0], 4, 2, 16, rng)
    for one in (poison, batch):
        if one is poison:
            one.k_pool.fill_(torch.nan), one.v_pool.fill_(torch.nan)
        arguments = {**one.prefill_arguments(), "scale": 0.3}
        out = paged_attn_prefill_native(native, **arguments)
    assert_near(out, paged_attn_ref(**arguments), 5e-6)


def test_attention_gives_padding_rows_zeros(native, rng):
    batch = paged_batch([1, 1], [9, 3], 4, 2, 4, rng)
    out = paged_attn_decode_native(
        native,
        torch.cat((batch.q, torch.full_like(batch.q[:1], torch.nan))),
        batch.k_pool,
        batch.v_pool,
        batch.block_tables,
        F.pad(batch.table_rows, (0, 1)),
        torch.tensor([*batch.kv_lens_host, 0]),
        [*batch.kv_lens_host, 0],
        0.5,
    )
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.5)
    assert_near(out[:2], expected, 5e-6)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("channels, width", [(1, 2), (40, 4), (300, 3), (530, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("all_go_on", [False, True])
@pytest.mark.parametrize("parts", [3, 1])  # B, C and x, or x alone
def test_a_gated_convolution(native, rng, rows, channels, width, dtype, all_go_on, parts):
    taps = torch.randn(channels, width)
    bias = torch.randn(channels) if rng.random() < 0.5 else None
    batch = ragged_batch(
        [1] * rows, [7 if all_go_on else rng.choice([0, 7]) for _ in range(rows)], rng
    )
    bcx = strided(rows, parts * channels, rng)
    pool = poisoned_pool(batch, (channels, width - 1), dtype)
    expected_pool = pool.clone()
    slots = (batch.read_slots, batch.write_slots, None if all_go_on else batch.has_initial)
    out = gated_conv_step_native(native, bcx, taps, bias, pool, *slots)
    wide = (bcx.double(), taps.double(), None if bias is None else bias.double())
    assert_near(out, gated_conv_step(*wide, expected_pool, *slots).double(), 2e-6)
    assert_pools_match(pool, expected_pool, 0.0, 0.0)


def reference_step(weights, zxbcdt, conv_pool, ssm_pool, read, write, has_initial) -> Tensor:
    """Row by row in float64; writes the pools in their own dtype."""
    w = in_float64(weights)
    heads_a_group = w.heads // w.groups
    windows, states = conv_pool[read].double(), ssm_pool[read].double()
    outputs = []
    for row, projected in enumerate(zxbcdt.double()):
        fresh = has_initial is not None and not bool(has_initial[row])
        z, conv_input, dt = torch.split(projected, w.splits)
        window = torch.zeros_like(windows[row]) if fresh else windows[row]
        window = torch.cat((window, conv_input[:, None]), dim=1)
        total = (window * w.conv_weight).sum(dim=1)
        conv = F.silu(total if w.conv_bias is None else total + w.conv_bias)
        (x,), (B,), (C,) = w.split_conv(conv[None])
        step = F.softplus(dt + w.dt_bias).clamp(*w.dt_limit)
        state = torch.zeros_like(states[row]) if fresh else states[row]
        B, C = (t.repeat_interleave(heads_a_group, dim=0)[:, None] for t in (B, C))
        state = state * (step * w.A).exp()[:, None, None] + (step[:, None] * x)[:, :, None] * B
        y = (state * C).sum(dim=2) + w.D[:, None] * x
        y = y.flatten() if w.gate_last else y.flatten() * F.silu(z)
        if w.norm_weight is not None:
            grouped = y.view(w.groups, -1)
            normed = grouped * torch.rsqrt(grouped.square().mean(dim=1, keepdim=True) + w.eps)
            y = normed.flatten() * w.norm_weight
        outputs.append(y * F.silu(z) if w.gate_last else y)
        conv_pool[write[row]] = window[:, 1:].to(conv_pool.dtype)
        ssm_pool[write[row]] = state.to(ssm_pool.dtype)
    return torch.stack(outputs)


SHAPES = [(1, 1, 1, 1, 2), (3, 5, 1, 7, 4), (6, 16, 2, 16, 4), (4, 8, 4, 33, 3), (2, 40, 1, 200, 4)]


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("heads, head_dim, groups, d_state, width", SHAPES)
@pytest.mark.parametrize("conv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ssm_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", [mamba2_step, mamba2_step_native])
def test_a_mamba_step(
    native, rng, rows, heads, head_dim, groups, d_state, width, conv_dtype, ssm_dtype, step
):
    weights = random_mixer(heads, head_dim, groups, d_state, width, rng)
    batch = ragged_batch([1] * rows, [rng.choice([0, 7]) for _ in range(rows)], rng)
    projected = strided(rows, sum(weights.splits), rng)
    conv_pool = poisoned_pool(batch, (weights.conv_weight.shape[0], width - 1), conv_dtype)
    ssm_pool = poisoned_pool(batch, (heads, head_dim, d_state), ssm_dtype)
    expected_conv, expected_ssm = conv_pool.clone(), ssm_pool.clone()
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    how = (native,) if step is mamba2_step_native else ()
    y = step(*how, weights, projected, conv_pool, ssm_pool, *slots)
    expected = reference_step(weights, projected, expected_conv, expected_ssm, *slots)
    assert_near(y, expected, 2e-5)
    half = 2**-7
    assert_pools_match(conv_pool, expected_conv, 0.0, 0.0 if conv_dtype == torch.float32 else half)
    assert_pools_match(ssm_pool, expected_ssm, 2e-5, 2e-5 if ssm_dtype == torch.float32 else half)


@pytest.mark.parametrize("change", [{"gate_last": True}, {"norm_weight": None}])
@pytest.mark.parametrize("step", [mamba2_step, mamba2_step_native])
def test_a_mamba_step_that_is_gated_last_or_not_normed(native, rng, change, step):
    weights = dataclasses.replace(random_mixer(6, 10, 2, 16, 4, rng), **change)
    batch = ragged_batch([1] * 3, [rng.choice([0, 7]) for _ in range(3)], rng)
    projected = strided(3, sum(weights.splits), rng)
    conv_pool = poisoned_pool(batch, (weights.conv_weight.shape[0], 3), torch.float32)
    ssm_pool = poisoned_pool(batch, (6, 10, 16), torch.float32)
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    expected = reference_step(weights, projected, conv_pool.clone(), ssm_pool.clone(), *slots)
    how = (native,) if step is mamba2_step_native else ()
    y = step(*how, weights, projected, conv_pool, ssm_pool, *slots)
    assert_near(y, expected, 2e-5)


def test_mamba_steps_reuse_a_slot_that_another_left(native, rng):
    weights = random_mixer(4, 16, 2, 16, 4, rng)
    conv_pool, ssm_pool = torch.randn(3, weights.conv_weight.shape[0], 3), torch.randn(3, 4, 16, 16)
    slot, first = torch.tensor([1]), torch.tensor([False])
    tokens = torch.randn(5, 1, sum(weights.splits))
    runs = []
    for _ in range(2):
        outputs = [
            mamba2_step_native(
                native, weights, token, conv_pool, ssm_pool, slot, slot, first if n == 0 else None
            )
            for n, token in enumerate(tokens)
        ]
        runs.append((torch.stack(outputs), ssm_pool[1].clone(), conv_pool[1].clone()))
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def test_padding_rows_change_no_other(native, rng):
    weights = random_mixer(3, 8, 1, 16, 4, rng)
    batch = ragged_batch([1, 1], [5, 9], rng)
    projected = torch.randn(2, sum(weights.splits))
    conv_pool = poisoned_pool(batch, (weights.conv_weight.shape[0], 3), torch.float32)
    ssm_pool = poisoned_pool(batch, (3, 8, 16), torch.float32)
    alone_conv, alone_ssm = conv_pool.clone(), ssm_pool.clone()
    slots = (batch.read_slots, batch.write_slots)
    alone = mamba2_step_native(native, weights, projected, alone_conv, alone_ssm, *slots)
    padded = torch.cat((projected, torch.full_like(projected, torch.nan)))
    zero = torch.zeros(2, dtype=torch.int64)
    more = (torch.cat((slot, zero)) for slot in slots)
    y = mamba2_step_native(native, weights, padded, conv_pool, ssm_pool, *more)
    assert torch.equal(y[:2], alone)
    assert_pools_match(conv_pool[1:], alone_conv[1:], 0.0, 0.0)
    assert_pools_match(ssm_pool[1:], alone_ssm[1:], 0.0, 0.0)
