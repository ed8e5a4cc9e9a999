"""Rows that ranks share: of a part of a table, and a norm by sums of squares."""

import pytest
import torch
from kernels.native_cases import assert_near, strided
from kernels.test_native_eight_bit import STORED, random_parts

from baton.kernels.eight_bit_weight import EightBitWeight
from baton.kernels.linear import PackedWeight, embedding, embedding_native
from baton.kernels.norm import (
    norm_by_sums,
    norm_by_sums_native,
    rms_norm,
    square_sums,
    square_sums_native,
)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_other_ranks_are_zeros(native, dtype, packed):
    whole, own = torch.randn(10, 37), range(3, 7)
    part = whole[3:7].to(dtype)
    check_rows(native, own, PackedWeight.of(part) if packed else part, part.float())


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_other_ranks_are_zeros_in_eight_bits(native, dtype, stored):
    values, scales = random_parts(4, 37, 32, stored)
    part = EightBitWeight.of(values, scales, 32, dtype)
    check_rows(native, range(3, 7), part, part.dense().float())


def check_rows(native, own, part, dense):
    ids = torch.tensor([2, 3, 6, 7, 0, 9, 5])
    wanted = torch.zeros(7, 37)
    wanted[[1, 2, 6]] = dense[[0, 3, 2]]
    assert torch.equal(embedding_native(native, ids, part, own), wanted)
    assert torch.equal(embedding(ids, part, own).float(), wanted)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("width", [1, 24, 131])
def test_a_norm_by_the_sums_of_two_ranks_is_the_norm_of_the_whole(native, rng, rows, width):
    whole, weight = strided(rows, 2 * width, rng), torch.randn(2 * width)
    parts, weights = whole.split(width, dim=1), weight.split(width)
    wanted = rms_norm(whole.double(), weight.double(), 1e-5).double()
    for sums, norm in (
        (square_sums, norm_by_sums),
        (
            lambda *given: square_sums_native(native, *given),
            lambda *given: norm_by_sums_native(native, *given),
        ),
    ):
        total = sums(parts[0], 3, 1) + sums(parts[1], 3, 1)
        assert not total[:, [0, 2]].any()
        normed = [
            norm(x, total, 1, 2 * width, w, 1e-5) for x, w in zip(parts, weights, strict=True)
        ]
        assert_near(torch.cat(normed, dim=1), wanted, 2e-6)
