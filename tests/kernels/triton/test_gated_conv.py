"""LFM2's gated convolution on a GPU against torch's, which has a float64 reference of its own."""

import pytest
import torch
from ragged_batches import poisoned_pool, ragged_batch, random_snapshots, seeded
from torch import Tensor
from triton_device import BOUND, assert_near, assert_pools_near, here

from baton.kernels import conv1d as torch_conv1d
from baton.kernels.triton import conv1d

CHANNELS, WIDTH = 130, 3


def inputs(
    tokens: int, dtype: torch.dtype, biased: bool, parts: int = 3
) -> tuple[Tensor, Tensor, Tensor | None]:
    """bcx, weight, bias. parts: 3, or 1: x alone"""
    bias = torch.randn(CHANNELS) if biased else None
    return torch.randn(tokens, parts * CHANNELS).to(dtype), torch.randn(CHANNELS, WIDTH), bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "lengths, prefixes", [([33, 1, 0, 20, 2], [0, 31, 3, 8, 1]), ([0, 0], [0, 7])]
)
@pytest.mark.parametrize("parts", [3, 1])
def test_prompts_leave_the_outputs_and_windows_that_torchs_do(lengths, prefixes, dtype, parts):
    rng = seeded(sum(lengths))
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 4, rng)
    arguments = inputs(batch.tokens, dtype, biased=dtype == torch.float32, parts=parts)
    expected_pool = poisoned_pool(batch, (CHANNELS, WIDTH - 1), dtype)
    pool = here(expected_pool)
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host, WIDTH, snapshots)
    plan = conv1d.plan_gated_conv_prefill(*lens).on(here(batch.read_slots).device)
    y = plan(here(batch.rows))(*here(arguments), pool)
    expected = torch_conv1d.plan_gated_conv_prefill(*lens).on(torch.device("cpu"))(batch.rows)
    assert y.dtype == dtype
    assert_near(y, expected(*arguments, expected_pool), BOUND[dtype])
    assert_pools_near(pool, expected_pool, 1e-7)


@pytest.mark.parametrize("parts", [3, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decode_step_does_too(dtype, parts):
    rng = seeded(2)
    batch = ragged_batch([1] * 4, [7, 0, 3, 0], rng)
    bcx, weight, bias = inputs(4, dtype, biased=True, parts=parts)
    expected_pool = poisoned_pool(batch, (CHANNELS, WIDTH - 1), dtype)
    pool = here(expected_pool)
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    y = conv1d.gated_conv_step(*here((bcx, weight, bias)), pool, *here(slots))
    expected = torch_conv1d.gated_conv_step(bcx, weight, bias, expected_pool, *slots)
    assert_near(y, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, 1e-7)


def test_a_prompt_cut_anywhere_equals_the_whole_bit_for_bit():
    """The test runs in bfloat16: a window holds what the convolution has taken, rounded alike."""
    rng = seeded(3)
    bcx, weight = here(inputs(29, torch.bfloat16, biased=True)[:2])
    whole, start, rest = (ragged_batch([n], [p], rng) for n, p in ((29, 0), (10, 0), (19, 10)))
    pools = [here(poisoned_pool(b, (CHANNELS, WIDTH - 1), bcx.dtype)) for b in (whole, start, rest)]

    def run(batch, pool, first, last):
        lens = (batch.cu_seqlens_host, batch.prefix_lens_host, WIDTH, None)
        plan = conv1d.plan_gated_conv_prefill(*lens).on(bcx.device)
        return plan(here(batch.rows))(bcx[first:last], weight, None, pool)

    y = run(whole, pools[0], 0, 29)
    first = run(start, pools[1], 0, 10)
    pools[2][int(rest.read_slots[0])] = pools[1][int(start.write_slots[0])]
    assert torch.equal(torch.cat((first, run(rest, pools[2], 10, 29))), y)
