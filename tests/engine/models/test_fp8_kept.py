"""FP8 weights that stay in 8 bits: the bits of the expanded model's answers, in half the memory."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eight_bit_packing import (
    BLOCKS,
    FILE,
    FP8,
    ROWS,
    Form,
    edit_config,
    edit_tensors,
    in_blocks,
    keeps_eight_bit,
    pack,
)
from engine.models.test_fp8 import CASES, LLAMA, PROMPT, packed
from oracle.reference import Oracle
from oracle.specs import SPECS
from rank_models import say_together
from safetensors.torch import load_file
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import ConfigError
from baton.engine.assembly import kept_form as form
from baton.engine.assembly import loader
from baton.engine.assembly.loader import load_model, planned_memory
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.base import Kernels
from baton.kernels.kernel_choice import KernelChoice

DTYPES = [torch.float32, torch.bfloat16]
ANSWER = [7, 30, 21, 4, 88, 19]
# Ends of the names of matrices and of stacks of experts' matrices.
_TAKEN = (".weight", "experts.gate_up_proj", "experts.down_proj")
# Parts of the names of what quantisers leave as it is.
_LEFT = ("embed", "router", "gate.weight", "conv", "lm_head", "norm")


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not keeps_eight_bit(request.param):
        pytest.skip("this CPU's products do not read FP8")
    return request.param


def forms_of(folder: Path) -> Iterator[tuple[str, Form]]:
    """Yield the matrices of a checkpoint that a quantiser takes, experts too, with scales by turns
    of rows and of blocks that divide no side."""
    names = [
        name
        for name, tensor in load_file(folder / FILE).items()
        if tensor.dim() > 1 and name.endswith(_TAKEN) and not any(p in name for p in _LEFT)
    ]
    for place, name in enumerate(names):
        yield name, (ROWS, in_blocks(24, 32), in_blocks(None, None))[place % 3]


def answers(config: EngineConfig) -> Tensor:
    """The logits of every token of a prompt, by chunks, and of an answer, two rows at a time."""
    driver = StepDriver(load_model(config))
    rows = [driver.start([token % 60 for token in PROMPT[first:]]) for first in (0, 3)]
    logits = [driver.prefill(rows[0], chunk=5).clone(), driver.prefill(rows[1]).clone()]
    for token in ANSWER:
        for row in rows:
            row.tokens.append(token % 60)
        logits += [step.clone() for step in driver.step(decode=rows)]
    return torch.cat(logits)


@pytest.mark.parametrize("name", SPECS)
def test_answers_have_the_bits_of_the_expanded_model_s(
    oracle: Oracle, tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    if dtype is torch.bfloat16 and name == "deepseek2_odd_greedy":
        pytest.skip("rows of its experts are no multiples of 16 bytes")
    plain = shutil.copytree(oracle.checkpoint(name), tmp_path / "plain")
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [24, 32]}}
    folder = pack(plain, dict(forms_of(plain)), "_scale_inv", config).packed
    kept = EngineConfig(folder, dtype=dtype, weight_format=WeightFormat.FP8, memory_bytes=1 << 28)
    expanded = replace(kept, weight_format=WeightFormat.MODEL)
    assert torch.equal(answers(kept), answers(expanded))
    loaded = [load_model(options).weight_bytes for options in (kept, expanded)]
    planned = [planned_memory(options).weight_bytes for options in (kept, expanded)]
    assert loaded[0] < loaded[1] and planned[0] < planned[1]
    assert planned[0] <= loaded[0]  # matrices that are not in FP8 may be padded


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_so_have_those_of_parts_that_begin_within_blocks(
    tmp_path: Path, name: str, ranks: int, dtype: torch.dtype
) -> None:
    folder = packed(CASES[name], tmp_path).packed
    found, wanted = (
        say_together(folder, PROMPT, ANSWER, ranks, KernelChoice.AUTO, dtype, form)
        for form in (WeightFormat.FP8, WeightFormat.MODEL)
    )
    assert torch.equal(found, wanted)


def test_dense_layers_take_half_of_bfloat16_s_memory(tmp_path: Path) -> None:
    if not keeps_eight_bit(torch.bfloat16):
        pytest.skip("this CPU's products do not read FP8")
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
    plain = write_checkpoint(tmp_path / "plain", {**LLAMA, **sizes}, torch.bfloat16)
    config = {"quantization_config": {"quant_method": "fp8"}}
    folder = pack(plain, {"*_proj.weight": BLOCKS}, "_scale_inv", config).packed
    options = EngineConfig(folder, dtype=torch.bfloat16)
    tables = 2 * 2 * 320 * 512  # embedding and head, in bfloat16
    expanded = load_model(replace(options, weight_format=WeightFormat.MODEL)).weight_bytes - tables
    assert 0.5 < (load_model(options).weight_bytes - tables) / expanded < 0.55


def test_a_matrix_with_a_nan_is_expanded(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    config = {"quantization_config": {"quant_method": "fp8"}}
    folder = pack(plain, {"*.mlp.*.weight": BLOCKS}, "_scale_inv", config).packed
    options = EngineConfig(folder, dtype=dtype, weight_format=WeightFormat.FP8)
    before = load_model(options).weight_bytes
    name = "model.layers.1.mlp.down_proj.weight"
    weight = load_file(folder / FILE)[name].view(torch.uint8).clone()
    weight[200, 300] = 0xFF
    edit_tensors(folder, {name: weight.view(FP8)})
    assert load_model(options).weight_bytes > before
    assert answers(options)[:, 0].isnan().any()


def test_where_products_read_no_fp8_it_is_expanded_or_refused(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    config = {"quantization_config": {"quant_method": "fp8"}}
    folder = pack(plain, {"*.mlp.*.weight": BLOCKS}, "_scale_inv", config).packed
    options = EngineConfig(folder, kernels=KernelChoice.TORCH, memory_bytes=1 << 28)
    expanded = replace(options, weight_format=WeightFormat.MODEL)
    assert planned_memory(options).weight_bytes == planned_memory(expanded).weight_bytes
    assert load_model(options).weight_bytes == load_model(expanded).weight_bytes
    refused = replace(options, weight_format=WeightFormat.FP8)
    for load in (load_model, planned_memory):
        with pytest.raises(ConfigError, match=r"fp8 needs the native kernels.* Use .* auto"):
            load(refused)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_a_plan_for_a_gpu_looks_for_no_kernels_and_counts_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    config = {"quantization_config": {"quant_method": "fp8"}}
    pair = pack(plain, {"*.mlp.*.weight": BLOCKS}, "_scale_inv", config)

    def select(*_: object) -> Kernels:
        raise AssertionError("kernels were looked for")

    for module in (loader, form):
        monkeypatch.setattr(module, "select", select)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(loader, "available_memory", lambda device: 60 << 30)
    monkeypatch.setattr(loader, "card_memory", lambda device: 80 << 30)
    on_gpu = [
        planned_memory(EngineConfig(folder, device="cuda", memory_bytes=8 << 30))
        for folder in (pair.packed, pair.expanded)
    ]
    kept = capability > (8, 8)
    assert (on_gpu[0].weight_bytes < on_gpu[1].weight_bytes) is kept
    if not kept:
        assert on_gpu[0].weight_bytes == on_gpu[1].weight_bytes


def test_weights_that_are_not_in_fp8_are_not_called_so(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA)
    edit_config(plain, {"quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(ConfigError, match=r"plain has none\. Use weight_format auto, or int8"):
        load_model(EngineConfig(plain, weight_format=WeightFormat.FP8))
