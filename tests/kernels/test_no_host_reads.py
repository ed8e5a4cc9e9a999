"""Tests that no kernel of the forward path reads the device on the host."""

import pytest
import torch
from guards import HostReadError, NoHostReads
from ragged_batches import poisoned_pool, ragged_batch, random_snapshots, seeded

from baton.kernels.attention import kv_write, paged_attn_decode, paged_attn_prefill
from baton.kernels.chunks import RaggedRows
from baton.kernels.conv1d import causal_conv1d_update, causal_conv1d_varlen
from baton.kernels.delta_mixer import (
    DeltaInputs,
    DeltaWeights,
    gated_delta_step,
    plan_delta_prefill,
)
from baton.kernels.mla import (
    apply_partial_rope,
    from_latent,
    latent_write,
    mla_decode,
    mla_prefill,
    mla_query,
)
from baton.kernels.moe import experts_swiglu, route_softmax_topk
from baton.kernels.norm import gated_rms_norm, rms_norm
from baton.kernels.rope import apply_rope, rope_cache
from baton.kernels.sampling import (
    add_token_counts,
    apply_penalties,
    log_probs,
    mask_tokens,
    sample_tokens,
)
from baton.kernels.ssd import ssd_prefill
from baton.kernels.state_update import selective_state_update

LIMIT = (0.0, float("inf"))


def test_recurrent_kernels_read_nothing_back():
    rng = seeded(0)
    batch = ragged_batch([40, 1, 9], [0, 33, 64], rng)
    snapshots = random_snapshots(batch, 32, rng)
    conv_pool = poisoned_pool(batch, (10, 3), torch.float32)
    ssm_pool = poisoned_pool(batch, (2, 4, 6), torch.float32)
    x, weight, bias = torch.randn(50, 10), torch.randn(10, 4), torch.randn(10)
    heads, dt = torch.randn(50, 2, 4), torch.randn(50, 2)
    B, C = torch.randn(50, 1, 6), torch.randn(50, 1, 6)
    A, D, dt_bias = -torch.rand(2), torch.randn(2), torch.randn(2)
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    slots = (batch.read_slots, batch.write_slots)
    rows = (*slots, batch.has_initial)
    with NoHostReads():
        causal_conv1d_varlen(x, weight, bias, *lens, conv_pool, *rows, snapshots)
        causal_conv1d_update(x[:3], weight, bias, conv_pool, *rows)
        ssd_prefill(heads, dt, A, B, C, D, dt_bias, LIMIT, *lens, 32, ssm_pool, *rows, snapshots)
        selective_state_update(
            ssm_pool, *slots, heads[:3], dt[:3], A, B[:3], C[:3], D, dt_bias, LIMIT,
            batch.has_initial,
        )  # fmt: skip


@pytest.mark.parametrize("channelwise", [False, True])
def test_delta_mixers_read_nothing_back(channelwise):
    rng = seeded(4)
    batch = ragged_batch([40, 1, 9], [0, 33, 64], rng)
    snapshots = random_snapshots(batch, 64, rng)
    conv_pool = poisoned_pool(batch, (20, 3), torch.float32)
    state_pool = poisoned_pool(batch, (2, 3, 4), torch.float32)
    rates = 6 if channelwise else 2
    weights = DeltaWeights(
        conv_weight=torch.randn(20, 4), A=-torch.rand(2), dt_bias=torch.randn(rates),
        norm_weight=torch.ones(4), key_heads=2, key_dim=3, eps=1e-6, silu_gate=True,
    )  # fmt: skip
    inputs = DeltaInputs(*(torch.randn(50, width) for width in (20, 8, 2, rates)))
    rows = RaggedRows(
        batch.cu_seqlens, tuple(batch.cu_seqlens_host), tuple(batch.prefix_lens_host),
        batch.read_slots, batch.write_slots, batch.has_initial,
    )  # fmt: skip
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    with NoHostReads():
        plan = plan_delta_prefill(rows.cu_seqlens_host, rows.prefix_lens_host, 4, snapshots)
        prefill = plan.on(torch.device("cpu"))(rows)
        prefill(weights, inputs, conv_pool, state_pool)
        gated_delta_step(weights, inputs.tokens(slice(3)), conv_pool, state_pool, *slots)


def test_attention_reads_nothing_back():
    seeded(1)
    k_pool, v_pool = torch.randn(6, 4, 2, 8), torch.randn(6, 4, 2, 8)
    place = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32), torch.tensor([1, 0])
    q, k = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    cu_seqlens, kv_lens = torch.tensor([0, 3, 5]), torch.tensor([7, 2])
    pages, offsets = torch.tensor([2, 2, 2, 3, 3]), torch.tensor([0, 1, 2, 0, 1])
    positions, cache = torch.arange(5), rope_cache(torch.rand(4), 8)
    with NoHostReads():
        q = apply_rope(q, cache, positions)
        kv_write(k, k, k_pool, v_pool, pages, offsets)
        paged_attn_prefill(q, k_pool, v_pool, *place, cu_seqlens, [0, 3, 5], kv_lens, [7, 2], 0.3)
        paged_attn_decode(q[:2], k_pool, v_pool, *place, kv_lens, [7, 2], 0.3)


def test_latent_attention_reads_nothing_back():
    seeded(1)
    pool, up = torch.randn(6, 4, 8), torch.randn(3, 9, 6)
    place = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32), torch.tensor([1, 0])
    q, kv_lens = torch.randn(4, 3, 7), torch.tensor([7, 2])
    cu_seqlens, nodes = torch.tensor([0, 3, 4]), torch.tensor([1, 5])
    with NoHostReads():
        latent_write(torch.randn(4, 8), pool, torch.tensor([2, 2, 2, 3]), torch.arange(4))
        lens = (cu_seqlens, [0, 3, 4], kv_lens, [7, 2])
        mla_prefill(q[..., :-2], q[..., -2:], pool, up, *place, *lens, 0.3)
        turned = apply_partial_rope(q, 2, rope_cache(torch.rand(1), 8), torch.arange(4), True)
        query = mla_query(q[..., :5], turned, up).unflatten(0, (2, 2))
        mean = mla_decode(query, pool, *place, kv_lens, [7, 2], 6, 0.3)
        mla_decode(query[:, :1], pool, *place, kv_lens, [7, 2], 6, 0.3, nodes=nodes)
        from_latent(mean.flatten(0, 1), up, 5)


def test_feed_forward_and_norms_read_nothing_back():
    seeded(2)
    x = torch.randn(7, 8)
    w_in, w_out = torch.randn(4, 24, 8), torch.randn(4, 8, 12)
    with NoHostReads():
        x = rms_norm(x, torch.ones(8), 1e-5)
        x = gated_rms_norm(x, x, torch.ones(8), 1e-5, 4, False)
        experts_swiglu(x, *route_softmax_topk(torch.randn(7, 4), 2), w_in, w_out)


def test_sampling_reads_nothing_back():
    seeded(3)
    logits = torch.randn(4, 30)
    rows, n = torch.tensor([0, 2]), torch.ones(2)
    counts = torch.zeros(2, 30, dtype=torch.int32)
    filters = (torch.tensor([5, 0]), n * 0.9, n * 0.1)
    with NoHostReads():
        add_token_counts(counts, torch.tensor([0, 1, 1]), torch.tensor([3, 4, 4]))
        apply_penalties(logits, rows, counts, torch.tensor([1, 0]), n * 1.2, n, n)
        mask_tokens(logits, rows, torch.tensor([[7, 8], [9, 9]]), rows > 0)
        tokens = sample_tokens(logits, rows, n, torch.tensor([1, 2]), rows, filters)
        log_probs(logits, tokens, 3, tokens[:, None])


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: bool(x[0] > 0),
        lambda x: int(x[0]),
        lambda x: list(range(9))[x.long()[0]],
        lambda x: x[x.long()[0]],
        lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.int64)),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.index_put_((x > 0,), torch.zeros(())),
    ],
)
def test_the_guard_sees_each_way_to_read(read):
    x = torch.tensor([1.0, 2.0, 0.0])
    with pytest.raises(HostReadError), NoHostReads():
        read(x)


def test_the_guard_lets_device_work_pass():
    x, index = torch.randn(5), torch.tensor([3, 1])
    with NoHostReads():
        y = torch.where(x > 0, x, 0.0)[index]
        y = y.masked_fill(y > 1, 0.0)
        x.index_put_((index,), y)
