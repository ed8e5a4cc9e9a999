"""Products with matrices of 8-bit floats on a GPU, against those of the same values expanded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle.specs import SPECS
from ragged_batches import seeded
from step_driver import StepDriver
from torch import Tensor
from triton_device import BOUND, DEVICE, ROUNDING, assert_near, here

from baton.bench.checkpoints import write_checkpoint
from baton.engine.assembly.loader import build_model
from baton.engine.loading.eight_bit_part import EightBitLayout, EightBitPart, EightBitSource
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import DummyWeights, Shape
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import WeightFormat
from baton.kernels.eight_bit_weight import Fp8Words
from baton.kernels.linear import JoinedWeight
from baton.kernels.moe import experts_relu2_ref, experts_swiglu_ref
from baton.kernels.triton import fp8_linear
from baton.kernels.triton.fp8_linear import MOST_ROWS, linear
from baton.kernels.triton.moe import experts_relu2, experts_swiglu
from baton.kernels.triton.triton_kernels import TritonKernels

FP8 = torch.float8_e4m3fn
BLOCKS = (4, 32)  # rows and columns that share a scale


def in_fp8(shape: tuple[int, ...], group: int, dtype: torch.dtype) -> tuple[Fp8Words, Tensor]:
    """A random matrix, or one an expert, and its values in float32."""
    made = Fp8Words.empty(shape, group, dtype, torch.device("cpu"))
    scales = torch.rand(*shape[:-1], -(-shape[-1] // group)) + 0.5
    made.put(slice(None), (torch.randn(shape) / 4).to(FP8), scales)
    return made, replace(made, dtype=torch.float32).dense()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "tokens, outputs, inner, group",
    [
        (1, 70, 192, 32),
        (5, 64, 256, 128),
        (17, 40, 160, 96),
        (70, 40, 300, 320),  # a scale a row
        (MOST_ROWS + 1, 70, 96, 64),
    ],
)
def test_products_are_those_of_the_values(
    tokens: int, outputs: int, inner: int, group: int, dtype: torch.dtype
) -> None:
    seeded(tokens)
    weight, values = in_fp8((outputs, inner), group, dtype)
    x, bias = torch.randn(tokens, inner).to(dtype), torch.randn(outputs).to(dtype)
    expected = x.double() @ values.double().T
    bound = BOUND[dtype] if dtype is torch.float32 else ROUNDING
    assert_near(linear(here(x), here(weight)), expected, bound)
    y = linear(here(x), here(weight), here(bias))
    assert y.dtype == dtype
    assert_near(y, expected + bias.double(), bound)


def test_every_number_is_itself() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    bits[(bits & 0x7F) == 0x7F] = 0  # NaN
    weight = Fp8Words.empty((16, 256), 256, torch.bfloat16, torch.device("cpu"))
    weight.put(slice(None), bits.view(FP8).repeat(16, 1), torch.ones(16, 1))
    each = linear(here(torch.eye(256).bfloat16()), here(weight))
    assert torch.equal(each[:, 0].float().cpu(), bits.view(FP8).float())
    assert torch.equal(weight.dense()[3].float(), bits.view(FP8).float())
    few = linear(here(torch.eye(256)[:MOST_ROWS].bfloat16()), here(weight))
    assert torch.equal(few.cpu(), each[:MOST_ROWS].cpu())


def test_a_fused_product_has_parts_in_different_forms() -> None:
    seeded(4)
    first, values = in_fp8((40, 64), 32, torch.float32)
    second, x, bias = torch.randn(6, 64), torch.randn(3, 64), torch.randn(46)
    y = linear(here(x), JoinedWeight((here(first), here(second))), here(bias))
    assert_near(y, x @ torch.cat([values, second]).T + bias, BOUND[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden, inner, groups", [(96, 40, (32, 64)), (128, 64, (128, 32))])
def test_experts_are_those_of_the_values(
    hidden: int, inner: int, groups: tuple[int, int], dtype: torch.dtype
) -> None:
    seeded(hidden)
    x, weights, experts = torch.randn(9, hidden), torch.rand(9, 2), torch.randint(0, 3, (9, 2))
    x = x.to(dtype)
    w_out, out_values = in_fp8((3, hidden, inner), groups[1], dtype)
    gated, gated_values = in_fp8((3, 2 * inner, hidden), groups[0], dtype)
    y = experts_swiglu(*here((x, weights, experts, gated, w_out)))
    expected = experts_swiglu_ref(x.float(), weights, experts, gated_values, out_values)
    assert y.dtype == dtype
    assert_near(y, expected, BOUND[dtype])
    plain, plain_values = in_fp8((3, inner, hidden), groups[0], dtype)
    y = experts_relu2(*here((x, weights, experts, plain, w_out)))
    expected = experts_relu2_ref(x.float(), weights, experts, plain_values, out_values)
    assert_near(y, expected, BOUND[dtype])


def test_experts_of_many_tokens_are_widened_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeded(8)
    x, weights, experts = torch.randn(70, 32), torch.rand(70, 2), torch.randint(0, 2, (70, 2))
    w_in, in_values = in_fp8((2, 24, 32), 32, torch.float32)
    w_out, out_values = in_fp8((2, 32, 24), 32, torch.float32)
    monkeypatch.setattr(fp8_linear, "_PIECE", 1)  # one expert after the other
    y = experts_relu2(*here((x, weights, experts, w_in, w_out)))
    expected = experts_relu2_ref(x, weights, experts, in_values, out_values)
    assert_near(y, expected, BOUND[torch.float32])


class RoundedWeights(DummyWeights, EightBitSource):
    """Random weights, of which matrices and stacks of them are rounded to FP8."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 0

    def _rounded(self, name: str, shape: Shape) -> tuple[Tensor, Tensor] | None:
        if len(shape) < 2 or "embed" in name or "conv" in name or "router" in name:
            return None
        blocks = [-(-shape[-2] // BLOCKS[0]), -(-shape[-1] // BLOCKS[1])]
        whole = super().tensor(name, shape)
        return (whole * 8).to(FP8), torch.full((*shape[:-2], *blocks), 0.125)

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        found = self._rounded(name, shape)
        return part.of(super().tensor(name, shape) if found is None else found[0].float() / 8)

    def eight_bit(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> EightBitPart | None:
        found = self._rounded(name, shape)
        layout = EightBitLayout.of(shape, (1,) * (len(shape) - 2) + BLOCKS, part)
        if found is None or layout is None:
            return None
        self.kept += 1
        return EightBitPart.read(layout, found[0], found[1])


@pytest.mark.parametrize("name", ["qwen3_next_moe", "zamba2_odd"])
def test_a_models_answers_are_those_of_its_expanded_weights(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    folder = write_checkpoint(tmp_path, {**spec.config, "model_type": spec.model_type})
    config = read_config(folder, torch.float32, torch.float32)
    source = RoundedWeights()
    kept = build_model(
        config, source, DEVICE, kernels=TritonKernels(), weight_format=WeightFormat.FP8
    )
    assert source.kept > 4
    expanded = build_model(config, RoundedWeights(), DEVICE, kernels=TritonKernels())
    assert kept.weight_bytes < expanded.weight_bytes
    drivers = [StepDriver(model, device=DEVICE) for model in (kept, expanded)]
    rows = [driver.start([5, 9, 17, 4, 31]) for driver in drivers]
    logits = [torch.cat(d.step(prefill=[(row, 5)])) for d, row in zip(drivers, rows, strict=True)]
    assert_near(logits[0], logits[1], 1e-4)
    for row in rows:
        row.tokens.append(7)
    steps = [torch.cat(d.step(decode=[row])) for d, row in zip(drivers, rows, strict=True)]
    assert_near(steps[0], steps[1], 1e-4)
