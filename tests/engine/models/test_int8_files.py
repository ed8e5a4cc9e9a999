"""INT8 checkpoints: the answers of the weights that they stand for, in 8 bits and expanded."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from eight_bit_packing import Form, Packed, Pair, edit_tensors, in_blocks, keeps_eight_bit, pack
from engine.models.test_fp8 import CASES, LLAMA, PROMPT, Case, packed
from engine.models.test_fp8_kept import ANSWER, answers
from rank_models import say_together
from torch import Tensor

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import ConfigError, WeightsError
from baton.engine.assembly import loader
from baton.engine.assembly.loader import load_model, planned_memory
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

INT8 = torch.int8
ROWS = in_blocks(1, None, stored=INT8)
GROUP = 64
GROUPS = in_blocks(1, GROUP, stored=INT8)
WEIGHTS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def section(form: str = "int-quantized", **weights: Any) -> Mapping[str, Any]:
    """The configuration of a checkpoint that others multiply with activations in INT8."""
    scheme = {"weights": WEIGHTS | weights, "input_activations": DYNAMIC, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme},
    }


def of_integers(case: Case) -> Case:
    """The case with a scale of every row of each of its matrices."""
    return replace(
        case, quantisation=section(), scale="_scale", forms=dict.fromkeys(case.forms, ROWS)
    )


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not keeps_eight_bit(request.param):
        pytest.skip("this CPU's products do not read 8 bits")
    return request.param


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_answers_have_the_bits_of_the_expanded_model_s(
    tmp_path: Path, name: str, ranks: int, dtype: torch.dtype
) -> None:
    pair = packed(of_integers(CASES[name]), tmp_path)
    kept, expanded, reference = (
        say_together(folder, PROMPT, ANSWER, ranks, KernelChoice.AUTO, dtype, form)
        for folder, form in (
            (pair.packed, WeightFormat.FP8),
            (pair.packed, WeightFormat.MODEL),
            (pair.expanded, WeightFormat.MODEL),
        )
    )
    assert torch.equal(kept, expanded)
    if dtype is torch.float32:
        torch.testing.assert_close(expanded, reference, rtol=0, atol=1e-5)


def llama(folder: Path, form: Form = ROWS, **weights: Any) -> Pair:
    plain = write_checkpoint(folder / "plain", LLAMA, seed=4)
    config = {"quantization_config": section(**weights)}
    return pack(plain, {"*.mlp.*.weight": form, "*_proj.weight": form}, "_scale", config)


def test_scales_of_groups_are_read_too(tmp_path: Path, dtype: torch.dtype) -> None:
    pair = llama(tmp_path, GROUPS, strategy="group", group_size=GROUP)
    kept = EngineConfig(pair.packed, dtype=dtype)
    expanded = replace(kept, weight_format=WeightFormat.MODEL)
    assert torch.equal(answers(kept), answers(expanded))
    if dtype is torch.float32:
        wanted = answers(EngineConfig(pair.expanded))
        torch.testing.assert_close(answers(kept), wanted, rtol=0, atol=1e-5)


def test_matrices_stay_in_8_bits_where_products_read_them(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = llama(tmp_path)
    kept = EngineConfig(pair.packed, dtype=dtype, memory_bytes=1 << 28)
    expanded = replace(kept, weight_format=WeightFormat.MODEL)
    loaded = [load_model(options).weight_bytes for options in (kept, expanded)]
    planned = [planned_memory(options).weight_bytes for options in (kept, expanded)]
    assert loaded[0] < loaded[1] and planned[0] < planned[1]
    assert planned[0] <= loaded[0]  # matrices that are not in 8 bits may be padded

    # GPUs multiply FP8 alone.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(loader, "available_memory", lambda device: 60 << 30)
    monkeypatch.setattr(loader, "card_memory", lambda device: 80 << 30)
    of_gpu = [
        planned_memory(replace(options, device="cuda")).weight_bytes for options in (kept, expanded)
    ]
    assert of_gpu[0] == of_gpu[1]


def test_they_may_be_rounded_again_with_the_others(tmp_path: Path) -> None:
    """INT8 at load rounds what the files left alone too."""
    pair = llama(tmp_path)
    rounded = answers(EngineConfig(pair.packed, weight_format=WeightFormat.INT8))
    wanted = answers(EngineConfig(pair.expanded, weight_format=WeightFormat.INT8))
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=1e-5)


def test_zero_points_must_be_zero(tmp_path: Path) -> None:
    pair = llama(tmp_path, symmetric=False)
    name = "model.layers.1.mlp.down_proj.weight"
    zeros = torch.zeros(320, 1, dtype=INT8)
    edit_tensors(pair.packed, {f"{name}_zero_point": zeros})
    load_model(EngineConfig(pair.packed))
    zeros[5] = 3
    edit_tensors(pair.packed, {f"{name}_zero_point": zeros})
    with pytest.raises(WeightsError, match=f"{name}_zero_point is not 0, from which .* {name} are"):
        load_model(EngineConfig(pair.packed))


def test_a_checkpoint_of_integers_is_named_and_compared_with_the_option(tmp_path: Path) -> None:
    folder = llama(tmp_path).packed
    with pytest.raises(ConfigError, match=r"is quantised by compressed-tensors INT8\. Leave"):
        load_model(EngineConfig(folder, quantization="fp8"))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["channel", "tensor", "group"])
def test_what_compressed_tensors_itself_packs_is_read(tmp_path: Path, strategy: str) -> None:
    """The library packs, states its configuration, and says what the weights stand for."""
    pytest.importorskip(
        "compressed_tensors",
        reason="compressed-tensors is not installed: pip install .[quantisers]",
    )
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    size = GROUP if strategy == "group" else None
    args = QuantizationArgs(num_bits=8, type="int", strategy=strategy, group_size=size)
    dynamic = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=dynamic)
    library = BaseCompressor.get_value_from_registry("int-quantized")

    def packed_by_library(weight: Tensor) -> Packed:
        runs = weight.view(1, -1) if strategy == "tensor" else weight
        if size is not None:
            runs = weight.view(weight.shape[0], -1, size)
        least, most = runs.amin(-1), runs.amax(-1)
        if size is None:
            least, most = least[:, None], most[:, None]
        scale, zero = calculate_qparams(least, most, args)
        if strategy == "tensor":
            scale, zero = scale.view(1), zero.view(1)
        whole = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        stored = library.compress(whole, scheme)
        assert set(stored) == {"weight", "weight_scale"}
        back = library.decompress(stored, scheme)["weight"]
        return Packed(stored["weight"], stored["weight_scale"], back.float())

    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format="int-quantized", ignore=["lm_head"]
    )
    plain = write_checkpoint(tmp_path / "plain", LLAMA | {"intermediate_size": 448}, seed=4)
    stated = {"quantization_config": config.model_dump(mode="json")}
    pair = pack(plain, {"*_proj.weight": packed_by_library}, "_scale", stated)
    found, wanted = (answers(EngineConfig(folder)) for folder in (pair.packed, pair.expanded))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
