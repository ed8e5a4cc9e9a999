"""The peers beside which our kernels are timed, as far as a CPU can run them."""

import pytest
import torch

from baton.bench.gpu.kernel_cases import cases
from baton.bench.gpu.kernel_peers import peers
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.sizes import TINY

MAKE = Maker(torch.device("cpu"), torch.bfloat16)
SHAPES = {
    "attn_decode": (3, 6, 1, 12),
    "attn_prefill": (1, 6, 20, 12),
    "moe_decode": (3 * 2, 24),
    "moe_prefill": (20 * 2, 24),
}


@pytest.mark.parametrize("name", SHAPES)
def test_torch_does_the_work_of_our_kernel(name: str) -> None:
    torch.manual_seed(0)
    result = peers(TINY, MAKE)[name][1]()
    assert isinstance(result, torch.Tensor)
    assert tuple(result.shape) == SHAPES[name]
    assert bool(torch.isfinite(result).all()) and bool(result.any())


def test_each_peer_stands_beside_a_kernel_of_ours() -> None:
    ours = {case.name for case in cases(TINY, MAKE)}
    assert set(peers(TINY, MAKE)) <= ours
