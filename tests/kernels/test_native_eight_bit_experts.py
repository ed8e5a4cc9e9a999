"""Experts in 8-bit floats and integers: the bits of the experts that they stand for."""

import pytest
import torch
from kernels.test_native_eight_bit import DTYPES, FP8, expanded, random_parts
from torch import Tensor

from baton.kernels.eight_bit_weight import EightBitExperts
from baton.kernels.linear import ExpertWeight
from baton.kernels.moe import (
    experts_relu2,
    experts_relu2_native,
    experts_swiglu,
    experts_swiglu_native,
)

CPU = torch.device("cpu")


def random_experts(
    shape: tuple[int, int, int], group: int, dtype: torch.dtype, stored: torch.dtype = FP8
) -> tuple[EightBitExperts, Tensor]:
    """Experts of any 8-bit numbers, and the same ones expanded column by column."""
    experts, outputs, columns = shape
    made = EightBitExperts.empty(shape, group, dtype, CPU, stored)
    whole = torch.empty(shape, dtype=dtype)
    for expert in range(experts):
        values, scales = random_parts(outputs, columns, group, stored)
        scales = scales / 64 / columns**0.5
        made.put(expert, values, scales)
        whole[expert] = expanded(values, scales, group, dtype)
    return made, whole


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 60, 150])
@pytest.mark.parametrize(
    "width, inner, group", [(8, 8, 32), (40, 72, 32), (320, 288, 128), (96, 136, 1024)]
)
@pytest.mark.parametrize(
    "kinds", [(FP8, FP8), (FP8, torch.int8), (torch.int8, torch.int8)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_those_of_the_expanded_experts(
    native, tokens, width, inner, group, dtype, kinds
):
    x, weights = torch.randn(tokens, width), torch.rand(tokens, 2)
    chosen = torch.rand(tokens, 3).topk(2).indices
    for fold, native_form, form in (
        (2, experts_swiglu_native, experts_swiglu),
        (1, experts_relu2_native, experts_relu2),
    ):
        up, whole_up = random_experts((3, fold * inner, width), group, dtype, kinds[0])
        down, whole_down = random_experts((3, width, inner), group, dtype, kinds[1])
        assert torch.equal(up.dense(), whole_up) and torch.equal(down.dense(), whole_down)
        wanted = native_form(native, x, weights, chosen, whole_up, whole_down)
        pairs: tuple[tuple[ExpertWeight, ExpertWeight], ...]
        pairs = ((up, down), (up, whole_down), (whole_up, down))
        for pair in pairs:
            assert torch.equal(native_form(native, x, weights, chosen, *pair), wanted)
        torch.testing.assert_close(
            form(x, weights, chosen, up, down), form(x, weights, chosen, whole_up, whole_down)
        )


def test_experts_of_several_dtypes_are_refused(native):
    up, _ = random_experts((1, 64, 32), 32, torch.bfloat16)
    down, _ = random_experts((1, 32, 32), 32, torch.float32)
    chosen = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"bfloat16 and torch\.float32: expected one dtype"):
        experts_swiglu_native(native, torch.randn(1, 32), torch.ones(1, 1), chosen, up, down)


def test_part_of_a_stack_is_copied_as_it_is():
    values, scales = random_parts(48, 256, 64)
    stacked = EightBitExperts.empty((2, 24, 128), 64, torch.float32, CPU)
    part = values.view(torch.uint8).view(2, 24, 256)[..., 64:192].view(FP8)
    stacked.put(slice(None), part, scales.view(2, 24, 4)[..., 1:3])
    whole = expanded(values, scales, 64, torch.float32).view(2, 24, 256)
    assert torch.equal(stacked.dense(), whole[..., 64:192])
