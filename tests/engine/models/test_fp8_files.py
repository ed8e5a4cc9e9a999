"""Tests of scales in weight files: their shapes, dtypes and names, and every fault by its name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eight_bit_packing import FP8
from safetensors.torch import save_file
from torch import Tensor

from baton.core.errors import WeightsError
from baton.engine.loading import expansion
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Checkpoint

NAME = "model.layers.0.mlp.down_proj.weight"
SCALE = f"{NAME}_scale"
INVERSE = f"{NAME}_scale_inv"
PARTS = [
    WHOLE,
    WeightPart(0, (range(64, 128),)),
    WeightPart(0, (range(10, 20), range(120, 300))),
    WeightPart(1, (range(64, 128),)),
    WeightPart(1, (range(3, 5), range(127, 200))),
]
# The scales of a weight of 300 x 200: their shape, and the place of that of row i, column j.
SHAPES: dict[tuple[int, ...], Callable[[int, int], tuple[int, ...]]] = {
    (): lambda i, j: (),
    (1,): lambda i, j: (0,),
    (1, 1): lambda i, j: (0, 0),
    (300,): lambda i, j: (i,),
    (300, 1): lambda i, j: (i, 0),
    (1, 300): lambda i, j: (0, i),
    (3, 2): lambda i, j: (i // 128, j // 128),
    (3, 1, 2, 1): lambda i, j: (i // 128, 0, j // 128, 0),
}
# Those of three stacked experts of 300 x 200, of which a whole one or half of one may share some.
STACKED: dict[tuple[int, ...], Callable[[int, int, int], tuple[int, ...]]] = {
    (1,): lambda e, i, j: (0,),
    (3,): lambda e, i, j: (e,),
    (3, 1, 1): lambda e, i, j: (e, 0, 0),
    (3, 2, 1): lambda e, i, j: (e, i // 150, 0),
    (3, 300): lambda e, i, j: (e, i),
    (3, 300, 1): lambda e, i, j: (e, i, 0),
    (3, 1, 300): lambda e, i, j: (e, 0, i),
    (3, 3, 2): lambda e, i, j: (e, i // 128, j // 128),
}


def write(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


def values(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 60).to(FP8)


def positive(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(shape, generator=generator) + 0.01


def check_parts(folder: Path, expected: Tensor, parts: list[WeightPart]) -> None:
    """Check that the weight is `expected` in every part, also in pieces of a few rows."""
    shape = tuple(expected.shape)
    for part in parts:
        for dtype in (torch.float32, torch.bfloat16):
            found = Checkpoint(folder, dtype=dtype).tensor(NAME, shape, part)
            assert found.dtype == dtype
            assert torch.equal(found, part.of(expected).to(dtype)), part


@pytest.mark.parametrize("piece", [1 << 20, 1500])
@pytest.mark.parametrize("shape", SHAPES)
def test_scales_of_every_shape_belong_to_their_places(
    tmp_path: Path, shape: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, "_SLICE", piece)
    weight, scales = values(300, 200), positive(shape)
    expected = (
        torch.tensor([[scales[SHAPES[shape](i, j)].item() for j in range(200)] for i in range(300)])
        * weight.float()
    )
    folder = write(tmp_path / "one", {NAME: weight, SCALE: scales})
    check_parts(folder, expected, PARTS)


@pytest.mark.parametrize("shape", STACKED)
def test_so_do_those_of_stacked_experts(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight, scales = values(3, 300, 200), positive(shape)
    place = STACKED[shape]
    expected = weight.float() * torch.tensor(
        [
            [[scales[place(e, i, j)].item() for j in range(200)] for i in range(300)]
            for e in range(3)
        ]
    )
    folder = write(tmp_path / "one", {NAME: weight, INVERSE: scales})
    parts = [
        WHOLE,
        WeightPart(0, (range(1, 3),)),
        WeightPart(1, (range(100, 150), range(250, 300))),
        WeightPart(2, (range(64, 128),)),
    ]
    check_parts(folder, expected, parts)


@pytest.mark.parametrize(
    "store",
    [
        Tensor.clone,
        Tensor.bfloat16,
        Tensor.half,
        lambda s: s.to(torch.float8_e8m0fnu),
        lambda s: s.to(torch.float8_e8m0fnu).view(torch.uint8),
    ],
    ids=["float32", "bfloat16", "float16", "ue8m0", "ue8m0 as bytes"],
)
def test_scales_may_have_any_of_these_types(
    tmp_path: Path, store: Callable[[Tensor], Tensor]
) -> None:
    weight, powers = values(300, 200), torch.tensor([[0.5, 4.0], [1.0, 0.125], [2.0, 0.25]])
    whole = powers.repeat_interleave(128, 0)[:300].repeat_interleave(128, 1)[:, :200]
    folder = write(tmp_path / "one", {NAME: weight, INVERSE: store(powers)})
    check_parts(folder, weight.float() * whole, PARTS)


def test_numbers_worked_by_hand(tmp_path: Path) -> None:
    """Bytes of E4M3: a sign, four bits of exponent with a bias of 7, three of mantissa. Those of
    E8M0 are exponents with a bias of 127."""
    stored = torch.tensor([[0x38, 0xB8, 0x7E, 0x01], [0x00, 0x80, 0x41, 0x08]], dtype=torch.uint8)
    meant = torch.tensor([[1.0, -1.0, 448.0, 2.0**-9], [0.0, -0.0, 2.25, 2.0**-6]])
    exponents = torch.tensor([[130], [120]], dtype=torch.uint8)
    folder = write(tmp_path / "one", {NAME: stored.view(FP8), SCALE: exponents})
    found = Checkpoint(folder).tensor(NAME, (2, 4))
    wanted = meant * torch.tensor([[8.0], [2.0**-7]])
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def test_integers_worked_by_hand(tmp_path: Path) -> None:
    stored = torch.tensor([[-128, 127, 0, 1], [-1, 3, 100, -100]], dtype=torch.int8)
    scales = torch.tensor([[0.5], [0.25]])
    meant = torch.tensor([[-64.0, 63.5, 0.0, 0.5], [-0.25, 0.75, 25.0, -25.0]])
    folder = write(tmp_path / "one", {NAME: stored, SCALE: scales})
    assert torch.equal(Checkpoint(folder).tensor(NAME, (2, 4)), meant)


def test_every_number_is_what_torch_says() -> None:
    def numbers(values: Tensor) -> Tensor:
        return expansion.numbers(values, torch.full(values.shape, -1, dtype=torch.int32))

    every = torch.arange(256, dtype=torch.uint8).view(FP8)
    known = every[every.float().isfinite()]
    assert len(known) == 254
    assert torch.equal(numbers(known).view(torch.int32), known.float().view(torch.int32))
    for number in every.split(1):
        assert numbers(number).isnan().equal(number.float().isnan())
    assert torch.equal(numbers(every).isnan(), every.float().isnan())


def test_blocks_may_be_of_another_size(tmp_path: Path) -> None:
    weight, scales = values(300, 200), positive((5, 7))
    whole = scales.repeat_interleave(64, 0)[:300].repeat_interleave(32, 1)[:, :200]
    folder = write(tmp_path / "one", {NAME: weight, INVERSE: scales})
    found = Checkpoint(folder, block=(64, 32)).tensor(NAME, (300, 200))
    assert torch.equal(found, weight.float() * whole)
    with pytest.raises(WeightsError, match=r"expected .*\[3, 2\] by blocks of 128 x 128"):
        Checkpoint(folder)


def fault(folder: Path, tensors: dict[str, Tensor]) -> str:
    with pytest.raises(WeightsError) as raised:
        Checkpoint(write(folder, tensors))
    return str(raised.value)


def test_every_fault_is_named_at_once_with_both_tensors(tmp_path: Path) -> None:
    said = fault(
        tmp_path / "faults",
        {
            "bare.weight": values(8, 8),
            "integers.weight": torch.ones(8, 8, dtype=torch.int8),
            "lost.weight_scale_inv": torch.ones(1),
            "experts.lost_proj_scale_inv": torch.ones(1),
            "wide.weight": torch.ones(8, 8, dtype=torch.bfloat16),
            "wide.weight_scale": torch.ones(1),
            "double.weight": values(8, 8),
            "double.weight_scale": torch.ones(1),
            "double.weight_scale_inv": torch.ones(1),
            "bent.weight": values(300, 200),
            "bent.weight_scale": torch.ones(2, 3),
            "whole.weight": values(8, 8),
            "whole.weight_scale": torch.ones(8, 1, dtype=torch.int32),
            "flat.weight": values(8),
            "flat.weight_scale": torch.ones(1),
        },
    )
    for part in (
        "bare.weight is F8_E4M3 without its scale, bare.weight_scale_inv or bare.weight_scale",
        "integers.weight is I8 without its scale, integers.weight_scale_inv or "
        "integers.weight_scale",
        "lost.weight_scale_inv is a scale without its weight, lost.weight",
        "experts.lost_proj_scale_inv is a scale without its weight, experts.lost_proj",
        "wide.weight_scale is the scale of wide.weight, which is BF16: expected F8_E4M3 or I8",
        "double.weight has two scales, double.weight_scale_inv and double.weight_scale",
        "bent.weight_scale is [2, 3]: for bent.weight of [300, 200] expected one value, [300, 1] "
        "by row, or [3, 2] by blocks of 128 x 128",
        "whole.weight_scale is I32: expected one of F32, BF16, F16, F8_E8M0, U8",
        "flat.weight of shape [8] has a scale: expected a matrix",
    ):
        assert part in said


def test_many_faults_are_counted(tmp_path: Path) -> None:
    said = fault(tmp_path / "many", {f"m{n:02}.weight": values(4, 4) for n in range(25)})
    assert "m19.weight" in said and "m20.weight" not in said and "and 5 more" in said


def test_an_fp8_type_of_other_hardware_is_named(tmp_path: Path) -> None:
    entry = {"dtype": "F8_E4M3FNUZ", "shape": [2], "data_offsets": [0, 2]}
    header = json.dumps({NAME: entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(2)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=f"{NAME} has dtype F8_E4M3FNUZ; supported are"):
        Checkpoint(tmp_path)


def test_scales_of_activations_and_of_kv_are_no_part_of_the_model(tmp_path: Path) -> None:
    tensors = {
        NAME: values(300, 200),
        SCALE: torch.ones(()),
        "model.layers.0.mlp.down_proj.input_scale": torch.ones(()),
        "model.layers.0.self_attn.k_proj.weight": torch.ones(4, 4),
        "model.layers.0.self_attn.k_proj.k_scale": torch.ones(()),
        "model.layers.0.self_attn.v_proj.v_scale": torch.ones(()),
        "model.layers.0.mlp.experts.down_proj_activation_scale": torch.ones(3),
        "model.layers.0.mlp.down_proj.input_scale_inv": torch.ones(()),
        "model.layers.0.mlp.down_proj.input_zero_point": torch.ones(1).to(FP8),
        "model.layers.0.mlp.down_proj.weight_zero_point": torch.zeros(300, 1).to(FP8),
        "model.layers.0.mlp.down_proj.input_quantizer._amax": torch.ones(()),
        "model.layers.0.self_attn.kv_cache_scale": torch.ones(()),
        "model.layers.0.self_attn.kv_cache_scale_inv": torch.ones(()),
        "model.layers.0.self_attn.k_zero_point": torch.ones(1, dtype=torch.int8),
        "model.layers.0.self_attn.block_scale": torch.ones(()),
    }
    checkpoint = Checkpoint(write(tmp_path / "one", tensors))
    assert set(checkpoint.quantised) == {NAME}
    needed = {NAME: (300, 200), "model.layers.0.self_attn.k_proj.weight": (4, 4)}
    with pytest.raises(WeightsError, match=r"model \(1\): model.layers.0.self_attn.block_scale$"):
        checkpoint.check(needed)


def test_zero_points_of_a_weight_must_be_zero(tmp_path: Path) -> None:
    zeros = torch.zeros(300, 1)
    zeros[7] = 2.0
    tensors = {NAME: values(300, 200), SCALE: torch.ones(()), f"{NAME}_zero_point": zeros.to(FP8)}
    checkpoint = Checkpoint(write(tmp_path / "one", tensors))
    with pytest.raises(WeightsError, match=f"{NAME}_zero_point is not 0, from which .* {NAME} are"):
        checkpoint.check({NAME: (300, 200)})


def test_what_is_ignored_may_be_at_fault_where_it_is_not_needed(tmp_path: Path) -> None:
    tensors = {
        NAME: values(300, 200),
        SCALE: torch.ones(()),
        "mtp.bare.weight": values(8, 8),
        "mtp.lost.weight_scale": torch.ones(1),
        "mtp.packed.weight": torch.ones(8, 4, dtype=torch.uint8),
        "mtp.packed.weight_scale": torch.ones(8, 1).to(FP8),
        "mtp.good.weight": values(8, 8),
        "mtp.good.weight_scale": torch.full((1,), 3.0),
    }
    folder = write(tmp_path / "one", tensors)
    checkpoint = Checkpoint(folder, ignored=["mtp.*"])
    checkpoint.check({NAME: (300, 200)})
    checkpoint.check({NAME: (300, 200), "mtp.good.weight": (8, 8)})
    found = checkpoint.tensor("mtp.good.weight", (8, 8))
    assert torch.equal(found, tensors["mtp.good.weight"].float() * 3)
    with pytest.raises(WeightsError, match=r"mtp.bare.weight is F8_E4M3 without its scale"):
        checkpoint.check({NAME: (300, 200), "mtp.bare.weight": (8, 8)})
    with pytest.raises(WeightsError, match=r"mtp.lost.weight_scale is a scale without its weight"):
        checkpoint.check({NAME: (300, 200), "mtp.lost.weight": (8, 8)})
    assert "mtp.bare.weight" in fault(folder, tensors)


def test_equal_tensors_are_compared_as_what_they_stand_for(tmp_path: Path) -> None:
    weight, scales = values(1500, 200), positive((12, 2))
    whole = scales.repeat_interleave(128, 0)[:1500].repeat_interleave(128, 1)[:, :200]
    plain = weight.float() * whole
    near = plain.clone()
    near[-1, -1] *= 1 + 2**-20
    tensors = {NAME: weight, INVERSE: scales, "plain": plain, "near": near}
    tensors |= {"twin.weight": weight.clone(), "twin.weight_scale_inv": scales * 2}
    checkpoint = Checkpoint(write(tmp_path / "one", tensors), dtype=torch.bfloat16)
    assert not checkpoint.differs(NAME, "plain") and not checkpoint.differs("plain", NAME)
    assert checkpoint.differs(NAME, "near")
    assert checkpoint.differs(NAME, "twin.weight")
