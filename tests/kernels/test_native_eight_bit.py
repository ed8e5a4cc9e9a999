"""Products with 8-bit numbers: the bits of those with the matrix that they stand for."""

import pytest
import torch
from kernels.native_cases import strided
from torch import Tensor

from baton.kernels.eight_bit_weight import EightBitWeight, Fp8Words
from baton.kernels.linear import (
    JoinedWeight,
    PackedWeight,
    embedding,
    embedding_native,
    linear,
    linear_native,
)

FP8 = torch.float8_e4m3fn
DTYPES = [torch.bfloat16, torch.float32]
STORED = [FP8, torch.int8]
NUMBERS = torch.arange(256, dtype=torch.uint8).view(FP8)
NUMBERS = NUMBERS[NUMBERS.float().isfinite()]


def random_parts(
    outputs: int, columns: int, group: int, stored: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """8-bit numbers, each as likely as any other, and scales of several magnitudes."""
    chosen = torch.randint(len(NUMBERS), (outputs, columns))
    scales = torch.rand(outputs, -(-columns // group)) * 2.0 ** torch.randint(-9, 3, (outputs, 1))
    if stored is torch.int8:
        return torch.randint(-128, 128, (outputs, columns), dtype=torch.int8), scales
    return NUMBERS.view(torch.uint8)[chosen].view(FP8), scales


def expanded(values: Tensor, scales: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Multiply the numbers by their scales, column by column."""
    whole = torch.empty(values.shape, dtype=dtype)
    for column in range(values.shape[1]):
        whole[:, column] = (values[:, column].float() * scales[:, column // group]).to(dtype)
    return whole


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 32, 33, 49, 150])
@pytest.mark.parametrize(
    "columns, outputs, group",
    [(1, 1, 32), (31, 5, 32), (64, 64, 32), (100, 131, 64), (333, 47, 128), (768, 37, 768)],
)
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_the_expanded_matrix(
    native, rng, rows, columns, outputs, group, dtype, stored
):
    values, scales = random_parts(outputs, columns, group, stored)
    weight = EightBitWeight.of(values, scales, group, dtype)
    whole = expanded(values, scales, group, dtype)
    assert torch.equal(weight.dense(), whole)
    x, bias = strided(rows, columns, rng), torch.randn(outputs)
    for b in (None, bias):
        got = linear_native(native, x, weight, b)
        assert torch.equal(got, linear_native(native, x, PackedWeight.of(whole), b))
        torch.testing.assert_close(linear(x, weight, b), linear(x, whole.float(), b))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_multiplied_by_its_scale_and_rounded_once(native, rows, dtype):
    values = NUMBERS.view(torch.uint8).view(127, 2).t().contiguous().view(FP8)
    for scale in (1.0, 0.37, 3e-20, 5e20):
        weight = EightBitWeight.of(values, torch.full((2, 1), scale), 128, dtype)
        wanted = (values.float() * scale).to(dtype).float()
        for column in range(127):
            x = torch.zeros(rows, 127)
            x[-1, column] = 1.0
            assert torch.equal(linear_native(native, x, weight)[-1], wanted[:, column])


def test_part_of_a_matrix_is_packed_as_a_copy_of_it(native):
    values, scales = random_parts(48, 256, 128)
    part = values[:, 64:192]
    for dtype in DTYPES:
        found = EightBitWeight.of(part, scales, 64, dtype).values
        assert torch.equal(found, EightBitWeight.of(part.clone(), scales, 64, dtype).values)


@pytest.mark.parametrize("rows", [1, 9, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_several_forms_are_multiplied_as_one(native, rng, rows, dtype):
    columns = 96
    forms = [
        EightBitWeight.of(*random_parts(outputs, columns, group, stored), group, dtype)
        for outputs, group, stored in ((32, 96, FP8), (21, 32, torch.int8))
    ]
    plain = torch.randn(7, columns).to(dtype)
    joined = JoinedWeight((forms[0], PackedWeight.of(plain), forms[1]))
    assert joined.shape == (60, columns)
    assert joined.nbytes == sum(part.nbytes for part in joined.parts)
    whole = PackedWeight.of(torch.cat([forms[0].dense(), plain, forms[1].dense()]))
    x, bias = strided(rows, columns, rng), torch.randn(60)
    for b in (None, bias):
        wanted = linear_native(native, x, whole, b)
        assert torch.equal(linear_native(native, x, joined, b), wanted)
        torch.testing.assert_close(linear(x, joined, b), linear(x, whole, b))


@pytest.mark.parametrize("columns, group", [(1, 32), (50, 32), (131, 64), (256, 256)])
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_the_expanded_matrix(native, columns, group, dtype, stored):
    values, scales = random_parts(37, columns, group, stored)
    table = EightBitWeight.of(values, scales, group, dtype)
    whole = expanded(values, scales, group, dtype)
    for rows in (0, 1, 9):
        ids = torch.randint(37, (rows,))
        assert torch.equal(embedding_native(native, ids, table), whole[ids].float())
        found = embedding(ids, table)
        assert found.dtype is dtype and torch.equal(found, whole[ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_of_gpus_are_looked_up_in_torch(dtype):
    values, scales = random_parts(21, 131, 64)
    words = Fp8Words.empty((21, 131), 64, dtype, torch.device("cpu"))
    words.put(slice(None), values, scales)
    ids = torch.randint(21, (9,))
    assert torch.equal(embedding(ids, words), expanded(values, scales, 64, dtype)[ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_foretold(native, dtype):
    for outputs, columns, group in ((1, 1, 32), (37, 100, 32), (64, 128, 128)):
        values, scales = random_parts(outputs, columns, group)
        weight = EightBitWeight.of(values, scales, group, dtype)
        foretold = EightBitWeight.nbytes_of(outputs, columns, scales.shape[1], dtype)
        assert weight.nbytes == foretold
