"""The gated delta rule's kernels against a token-by-token float64 recurrence."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ragged_batches import cloned, poisoned_pool, ragged_batch, random_snapshots, seeded
from torch import Tensor
from triton_device import BOUND, DEVICE, assert_near, assert_pools_near, here

from baton.kernels import delta_mixer as torch_mixer
from baton.kernels.gated_delta import CHUNK, gated_delta_prefill_ref, gated_delta_update_ref
from baton.kernels.triton import delta_mixer
from baton.kernels.triton.delta_rule import gated_delta_prompts
from baton.kernels.triton.delta_update import gated_delta_update
from baton.kernels.triton.prompt_chunks import prompt_chunks

ROWS = ("read_slots", "write_slots", "has_initial")
KINDS = [(False, torch.float32), (True, torch.float32), (False, torch.bfloat16)]


def delta_inputs(tokens: int, channels: bool, dtype: torch.dtype) -> dict[str, Any]:
    """2 heads of keys, 4 of values (2 where every key channel has its own decay)."""
    heads, K, V = (2, 10, 7) if channels else (4, 18, 20)
    decays = (tokens, heads, K) if channels else (tokens, heads)
    return {
        "q": torch.randn(tokens, 2, K).to(dtype),
        "k": torch.randn(tokens, 2, K).to(dtype),
        "v": torch.randn(tokens, heads, V).to(dtype),
        "g": -torch.rand(decays) * 4,
        "beta": torch.rand(tokens, heads),
    }


def state_shape(inputs: dict[str, Tensor]) -> tuple[int, int, int]:
    return inputs["v"].shape[1], inputs["k"].shape[2], inputs["v"].shape[2]


def run(inputs: dict[str, Tensor], batch, pool: Tensor, snapshots=None, decay=None) -> Tensor:
    rows = batch.rows
    plan = prompt_chunks(rows.cu_seqlens_host, rows.prefix_lens_host, CHUNK, snapshots)
    chunks = plan.on(DEVICE)(here(rows))
    return gated_delta_prompts(**here(inputs), pool=pool, chunks=chunks, decay=decay)


def expect(inputs: dict[str, Tensor], batch, pool: Tensor, snapshots=None) -> Tensor:
    return gated_delta_prefill_ref(
        **inputs, cu_seqlens_host=batch.cu_seqlens_host, prefix_lens_host=batch.prefix_lens_host,
        pool=pool, snapshots=snapshots, **{name: getattr(batch, name) for name in ROWS},
    )  # fmt: skip


@pytest.mark.parametrize("channels, dtype", KINDS)
def test_prompts_match_the_recurrence(channels, dtype):
    rng = seeded(channels)
    batch = ragged_batch([70, 1, 0, 9], [0, 60, 3, 128], rng)
    snapshots = random_snapshots(batch, CHUNK, rng)
    inputs = delta_inputs(batch.tokens, channels, dtype)
    expected_pool = poisoned_pool(batch, state_shape(inputs), torch.float32)
    pool = here(expected_pool)
    out = run(inputs, batch, pool, snapshots)
    expected = expect(inputs, batch, expected_pool, snapshots)
    assert out.dtype == dtype
    assert_near(out, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, BOUND[dtype])


@pytest.mark.parametrize("channels", [False, True])
def test_keys_that_are_all_alike_keep_their_digits(channels):
    """Every correction depends on all before it for such keys, and a series for the inverse would
    need terms far larger than the result."""
    rng = seeded(4)
    batch = ragged_batch([64], [0], rng)
    inputs = delta_inputs(64, channels, torch.float32)
    inputs |= {"k": inputs["k"][:1].expand(64, -1, -1).clone(), "g": inputs["g"] * 0.01}
    inputs["beta"] = torch.full_like(inputs["beta"], 0.99)
    expected_pool = poisoned_pool(batch, state_shape(inputs), torch.float32)
    pool = here(expected_pool)
    assert_near(run(inputs, batch, pool), expect(inputs, batch, expected_pool), 1e-4)
    assert_pools_near(pool, expected_pool, 1e-4)


@pytest.mark.parametrize("channels", [False, True])
def test_what_comes_after_much_was_forgotten_is_remembered_exactly(channels):
    """Sums of logarithms beyond -1000 have steps of 1.2e-4 in float32, their differences not."""
    rng = seeded(5)
    batch = ragged_batch([64], [0], rng)
    inputs = delta_inputs(64, channels, torch.float32)
    inputs["g"][:40] -= 30
    inputs["g"][40:] *= 0.02
    expected_pool = poisoned_pool(batch, state_shape(inputs), torch.float32)
    pool = here(expected_pool)
    assert_near(run(inputs, batch, pool), expect(inputs, batch, expected_pool), 2e-6)
    assert_pools_near(pool, expected_pool, 2e-6)


@pytest.mark.parametrize("channels, dtype", KINDS)
def test_a_decode_step_matches_the_reference(channels, dtype):
    rng = seeded(channels + 2)
    batch = ragged_batch([1] * 3, [5, 0, 9], rng)
    inputs = delta_inputs(3, channels, dtype)
    expected_pool = poisoned_pool(batch, state_shape(inputs), torch.float32)
    pool = here(expected_pool)
    rows: dict[str, Any] = {name: getattr(batch, name) for name in ROWS}
    out = gated_delta_update(**here(inputs), pool=pool, **here(rows))
    expected = gated_delta_update_ref(**inputs, pool=expected_pool, **rows)
    assert_near(out, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, BOUND[torch.float32])


@pytest.mark.parametrize("channels", [False, True])
def test_decays_and_rates_may_be_taken_inside(channels):
    """The kernels compute decays and rates from the raw projections, at prompts and at decode."""
    rng = seeded(7)
    batch = ragged_batch([1] * 3, [5, 0, 9], rng)
    inputs = delta_inputs(3, channels, torch.float32)
    heads, K, _ = state_shape(inputs)
    raw, b = torch.randn_like(inputs["g"]), torch.randn_like(inputs["beta"])
    A, dt_bias = -torch.rand(heads) - 0.1, torch.randn(heads * K if channels else heads)
    step = F.softplus(raw.flatten(1) + dt_bias).view_as(raw)
    inputs |= {"g": step * (A[:, None] if channels else A), "beta": b.sigmoid()}
    taken = inputs | {"g": raw.flatten(1), "beta": b}
    expected_pool = poisoned_pool(batch, state_shape(inputs), torch.float32)
    pool, other = here(expected_pool), here(expected_pool)
    rows: dict[str, Any] = {name: getattr(batch, name) for name in ROWS}
    decay = (here(A), here(dt_bias))
    out = gated_delta_update(**here(taken), pool=pool, **here(rows), decay=decay)
    prompts = run(taken, batch, other, decay=decay)
    expected = expect(inputs, batch, expected_pool)
    assert_near(out, expected, 2e-5)
    assert_near(prompts, expected, 2e-5)
    assert_pools_near(pool, expected_pool, 2e-5)
    assert_pools_near(other, expected_pool, 2e-5)


@pytest.mark.parametrize("channels", [False, True])
def test_a_mixer_equals_torchs_at_prompts_and_at_decode(channels):
    rng = seeded(8)
    heads, key_dim, value_dim, width = (2, 6, 5, 4) if channels else (4, 6, 5, 4)
    qkv = 2 * 2 * key_dim + heads * value_dim
    biases = heads * key_dim if channels else heads
    weights = torch_mixer.DeltaWeights(
        torch.randn(qkv, width), -torch.rand(heads), torch.randn(biases), torch.randn(value_dim),
        2, key_dim, 1e-5, silu_gate=not channels,
    )  # fmt: skip
    batch = ragged_batch([20, 3], [0, 5], rng)
    shapes = (qkv, width - 1), (heads, key_dim, value_dim)
    pools = cloned([poisoned_pool(batch, shape, torch.float32) for shape in shapes])
    own = here(pools)

    def inputs(tokens: int) -> torch_mixer.DeltaInputs:
        sizes = [qkv, heads * value_dim, heads, biases]
        return torch_mixer.DeltaInputs(*torch.randn(tokens, sum(sizes)).split(sizes, dim=1))

    prompt, token, rows = inputs(23), inputs(2), batch.rows
    lens = (rows.cu_seqlens_host, rows.prefix_lens_host)
    plan = delta_mixer.plan_delta_prefill(*lens, width, None).on(DEVICE)(here(rows))
    y = plan(here(weights), here(prompt), *own)
    plan = torch_mixer.plan_delta_prefill(*lens, width, None).on(torch.device("cpu"))(rows)
    assert_near(y, plan(weights, prompt, *pools), 2e-5)
    slots = (batch.write_slots, batch.write_slots)
    y = delta_mixer.gated_delta_step(here(weights), here(token), *own, *here(slots))
    assert_near(y, torch_mixer.gated_delta_step(weights, token, *pools, *slots), 2e-5)
    for pool, expected in zip(own, pools, strict=True):
        assert_pools_near(pool, expected, 2e-5)
