"""Tests of the elementwise GPU kernels against torch in float32."""

import pytest
import torch
from ragged_batches import seeded
from triton_device import BOUND, assert_near, here

from baton.kernels import elementwise as torch_elementwise
from baton.kernels.triton import elementwise

ROWS, WIDTH = 3, 1030  # two blocks, the second of six channels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["swiglu", "geglu", "relu2"])
def test_activations_of_strided_rows_match_torchs(name, dtype):
    seeded(len(name))
    columns = WIDTH if name == "relu2" else 2 * WIDTH
    x = (3 * torch.randn(ROWS, columns + 7)).to(dtype)[:, 5 : columns + 5]
    out = getattr(elementwise, name)(here(x))
    assert out.dtype == dtype
    assert_near(out, getattr(torch_elementwise, name)(x.float()), BOUND[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gates", [1, WIDTH])
def test_a_gate_a_channel_and_one_a_token_match_torchs(gates, dtype):
    seeded(gates)
    x = torch.randn(ROWS, WIDTH).to(dtype)
    gate = (4 * torch.randn(ROWS, gates + 3)).to(dtype)[:, :gates]
    out = elementwise.sigmoid_gated(here(x), here(gate))
    assert out.dtype == dtype
    assert_near(out, torch_elementwise.sigmoid_gated(x.float(), gate.float()), BOUND[dtype])


def test_no_rows_are_no_launch():
    for name in ("swiglu", "geglu", "relu2"):
        width = WIDTH if name == "relu2" else WIDTH // 2
        assert getattr(elementwise, name)(here(torch.ones(0, WIDTH))).shape == (0, width)
    assert elementwise.sigmoid_gated(*here([torch.ones(0, 4), torch.ones(0, 1)])).shape == (0, 4)
