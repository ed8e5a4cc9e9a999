"""Slots and pages past 2^31 values from their pool's beginning: a 9B model's fifteenth slot is.

The same kernel on a pool whose slots lie end to end says what it should say there, bit for bit.
Most of the memory is never touched, and so never taken on a CPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ragged_batches import seeded
from torch import Tensor
from triton_device import DEVICE, here

from baton.kernels.chunks import RaggedRows, SnapshotPlan
from baton.kernels.delta_mixer import DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.conv1d import (
    causal_conv1d_prompts,
    causal_conv1d_update,
    conv_tiles,
)
from baton.kernels.triton.delta_rule import gated_delta_prompts
from baton.kernels.triton.delta_update import gated_delta_update
from baton.kernels.triton.kv_write import kv_write, latent_write
from baton.kernels.triton.mla import mla_decode
from baton.kernels.triton.mla_prefill import mla_prefill
from baton.kernels.triton.prompt_chunks import prompt_chunks
from baton.kernels.triton.ssd import ssd_prompts
from baton.kernels.triton.state_update import selective_state_update
from baton.kernels.triton.verify import gated_conv_commit, gated_delta_commit, mamba2_commit
from baton.kernels.verify import Accepted

SLOTS, STRIDE = 3, (1 << 30) + 64  # the last slot begins past 2^31, though no stride reaches it
HEADS, K, TOKENS = 2, 16, 5


def far(near: Tensor) -> Tensor:
    """Return a copy of `near` whose slots lie STRIDE values apart."""
    inner = near[0].numel()
    whole = torch.empty((SLOTS - 1) * STRIDE + inner, dtype=near.dtype, device=near.device)
    return whole.as_strided(near.shape, (STRIDE, *near.stride()[1:])).copy_(near)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16).to(DEVICE)


def decode_slots() -> dict[str, Any]:
    """One row, whose read and write slot is the last."""
    return {"read_slots": ints(2), "write_slots": ints(2)}


def prompt() -> RaggedRows:
    """One row of TOKENS after eight others."""
    fresh = torch.ones(1, dtype=torch.bool, device=DEVICE)
    return RaggedRows(ints(0, TOKENS), (0, TOKENS), (8,), ints(2), ints(2), fresh)


def snapshot() -> SnapshotPlan:
    """After the whole row, where its own state goes as well."""
    return SnapshotPlan((0,), (8 + TOKENS,), (2,))


def mamba_inputs(tokens: int) -> dict[str, Any]:
    wide = {name: torch.rand(HEADS).to(DEVICE) for name in ("A", "D", "dt_bias")}
    shapes = {"x": (HEADS, K), "dt": (HEADS,), "B": (1, K), "C": (1, K)}
    own = {name: floats(tokens, *shape) for name, shape in shapes.items()}
    return {**wide, **own, "A": -wide["A"], "dt_limit": (0.0, 1.0)}


def delta_inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (floats(tokens, HEADS, K) for _ in range(3))
    return q, k, v, -torch.rand(tokens, HEADS).to(DEVICE), torch.rand(tokens, HEADS).to(DEVICE)


def ssm_step(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    return selective_state_update(pool, **decode_slots(), **mamba_inputs(1))


def ssm_prompt(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    plan = prompt_chunks((0, TOKENS), (8,), 32, snapshot()).on(DEVICE)
    return ssd_prompts(**mamba_inputs(TOKENS), ssm_pool=pool, chunks=plan(prompt()))


def delta_step(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    return gated_delta_update(*delta_inputs(1), pool, **decode_slots())


def delta_prompt(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    plan = prompt_chunks((0, TOKENS), (8,), 64, snapshot()).on(DEVICE)
    return gated_delta_prompts(*delta_inputs(TOKENS), pool, plan(prompt()))


def conv_step(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    x, weight = floats(1, pool.shape[1]), torch.rand(pool.shape[1], 4).to(DEVICE)
    return causal_conv1d_update(x, weight, None, pool, **decode_slots())


def conv_prompt(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    x, weight = floats(TOKENS, pool.shape[1]), torch.rand(pool.shape[1], 4).to(DEVICE)
    tiles = conv_tiles((0, TOKENS), (8,), snapshot()).on(DEVICE)(prompt())
    return causal_conv1d_prompts(x, weight, None, pool, tiles)


def accepted() -> Accepted:
    """Two of two tokens of one row, whose slot is the last, and a snapshot after one in slot 1."""
    return Accepted(ints(2), ints(2), None, ints(2), ints(1), ints(1))


def ssm_commit(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    wide, pools = partial(torch.rand, device=DEVICE), floats(1, SLOTS, 4 * K, 3)
    weights = Mamba2Weights(
        wide(4 * K, 4), None, -wide(HEADS), wide(HEADS), wide(HEADS), None, K, 1, K, 1e-5, (0, 1)
    )
    kept = floats(1, 2, 4 * K + HEADS)
    mamba2_commit(Mamba2Layers.of([weights]), kept, pools, pool[None], accepted())
    return pools


def delta_commit(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    wide, pools = partial(torch.rand, device=DEVICE), floats(1, SLOTS, 3 * HEADS * K, 3)
    weights = DeltaWeights(
        wide(3 * HEADS * K, 4), -wide(HEADS), wide(HEADS), wide(K), HEADS, K, 1e-5, True
    )
    kept = floats(1, 2, 3 * HEADS * K + 2 * HEADS)
    gated_delta_commit(DeltaLayers.of([weights]), kept, pools, pool[None], accepted())
    return pools


def conv_commit(seed: int, pool: Tensor) -> Tensor:
    seeded(seed)
    kept = floats(1, 2, pool.shape[1])
    gated_conv_commit(kept, 4, pool[None], accepted())
    return kept


def attention(seed: int, pool: Tensor) -> Tensor:
    """A token is written to page 2, and both pages are read, as a decode row and as a prompt."""
    seeded(seed)
    k, v = floats(1, 1, K), floats(1, 1, K)
    kv_write(k, v, pool, pool, ints(2), ints(3))
    place, lens, q = (ints(1, 2).view(1, 2).int(), ints(0)), ints(8), floats(2, HEADS, K)
    one = paged_attn_decode(q[:1], pool, pool, *place, lens, (), 0.3)
    prompt_lens = (*place, ints(0, 2), (0, 2), lens, (8,))
    return torch.cat((one, paged_attn_prefill(q, pool, pool, *prompt_lens, 0.3)))


def latents(seed: int, pool: Tensor) -> Tensor:
    """Write and read latents in `pool` at decode and at prefill, and return the outputs in one
    tensor."""
    seeded(seed)
    rank = pool.shape[2] - 4
    latent_write(floats(1, rank + 4), pool, ints(2), ints(3))
    place, lens = (ints(1, 2).view(1, 2).int(), ints(0)), ints(8)
    q, up = floats(2, HEADS, K + 4), floats(HEADS, 2 * K, rank)
    mean = mla_decode(floats(1, 1, HEADS, rank + 4), pool, *place, lens, (), rank, 0.3)
    prompt_lens = (*place, ints(0, 2), (0, 2), lens, (8,))
    out = mla_prefill(q[..., :K], q[..., K:], pool, up, *prompt_lens, 0.3)
    return torch.cat((mean.flatten(), out.flatten()))


@pytest.mark.parametrize(
    "kernels, shape",
    [
        (ssm_step, (HEADS, K, K)),
        (ssm_prompt, (HEADS, K, K)),
        (delta_step, (HEADS, K, K)),
        (delta_prompt, (HEADS, K, K)),
        (conv_step, (20, 3)),
        (conv_prompt, (20, 3)),
        (ssm_commit, (HEADS, K, K)),
        (delta_commit, (HEADS, K, K)),
        (conv_commit, (20, 3)),
        (attention, (4, 1, K)),
        (latents, (4, 20)),
    ],
)
def test_a_far_slot_holds_and_gives_what_a_near_one_does(
    kernels: Callable[[int, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    seed = torch.seed() % (1 << 30)
    print(f"seed {seed}")
    near = here(torch.randn(SLOTS, *shape).bfloat16())
    distant = far(near)
    assert torch.equal(kernels(seed, distant), kernels(seed, near))
    assert torch.equal(distant, near)
