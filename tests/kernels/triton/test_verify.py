"""Several tokens a row on a GPU, against single steps of the same kernels, on poisoned pools.

Under the interpreter they are the same bits. A GPU's compiler may contract the same sums otherwise.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from kernels.test_verify import (
    KINDS,
    Wish,
    bits,
    committed,
    committed_layers,
    random_case,
    verified,
)
from torch import Tensor
from triton_device import BOUND, DEVICE, ROUNDING, assert_near, assert_pools_near

from baton.kernels.torch_kernels import TORCH
from baton.kernels.triton.triton_kernels import TritonKernels

DTYPES = [torch.float32, torch.bfloat16]
KERNELS = TritonKernels()
INTERPRETED = DEVICE.type == "cpu"


@pytest.fixture(autouse=True)
def on_the_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def assert_same_pools(pool: Tensor, expected: Tensor) -> None:
    if INTERPRETED:
        assert torch.equal(bits(pool), bits(expected))
    assert_pools_near(pool, expected, BOUND[pool.dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_verified_tokens_are_those_of_single_steps_and_no_state_is_written(kind, rng):
    tokens, dtype = rng.choice([2, 3]), rng.choice(DTYPES)
    print(f"{tokens} tokens, {dtype}")
    case = random_case(kind, KERNELS, tokens, dtype, rng)
    y, pools, kept = verified(case)
    expected = torch.stack(case.stepped()[0], dim=1)
    if INTERPRETED:
        assert torch.equal(y, expected)
    assert_near(y, expected, BOUND[dtype])
    for before, after in zip(case.mixer.pools, pools, strict=True):
        assert torch.equal(bits(before), bits(after))
    assert not kept.isnan().any()


# Of three rows: each number of 4 tokens, snapshots before, at and past what is accepted, and none.
WISHES = [Wish([0, 2, 4], [1, 2, 3], in_place=True), Wish([3, 1, 4], [4, 0, 4], in_place=False)]


@pytest.mark.parametrize("dtype, wish", list(zip(DTYPES, WISHES, strict=True)))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "last" not in kind])
def test_every_number_of_accepted_tokens_leaves_the_state_of_single_steps(kind, dtype, wish, rng):
    case = random_case(kind, KERNELS, 4, dtype, rng)
    for got, expected in zip(*committed(case, wish), strict=True):
        assert_same_pools(got, expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "last" not in kind])
def test_layers_that_commit_together_get_the_states_that_each_gets_alone(kind, rng):
    for together, apart in committed_layers(kind, KERNELS, rng.choice(DTYPES), rng):
        assert torch.equal(bits(together), bits(apart))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "last" not in kind])
def test_bfloat16_activations_give_what_torchs_do_within_a_rounding(kind, rng):
    seed, dtype, results = rng.randrange(1 << 30), rng.choice(DTYPES), []
    print(f"{dtype}")
    wish = Wish([3, 0, 2], [2, 0, 3], in_place=True)
    for kernels in (KERNELS, TORCH):
        seeded = random.Random(seed)
        torch.manual_seed(seed)
        case = random_case(kind, kernels, 3, dtype, seeded)
        case = replace(case, mixer=replace(case.mixer, x=case.mixer.x.bfloat16()))
        y, _, kept = verified(case)
        assert y.dtype == kept.dtype == torch.bfloat16
        results.append((y, kept, committed(case, wish)))
    (y, kept, (pools, steps)), (expected, wanted, (theirs, _)) = results
    assert torch.equal(kept, wanted)
    # Torch rounds the short convolution before the gate, too.
    assert_near(y, expected, ROUNDING * (2 if kind == "short conv" else 1))
    for pool, own, other in zip(pools, steps, theirs, strict=True):
        assert_same_pools(pool, own)
        assert_pools_near(pool, other, ROUNDING)
