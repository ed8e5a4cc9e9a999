"""Experts in FP8 as people's checkpoints name them, which stay in 8 bits on a CPU."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eight_bit_packing import (
    BLOCKS,
    EXPONENTS,
    FILE,
    FP8,
    ROWS,
    WHOLE,
    Form,
    Packed,
    Pair,
    edit_tensors,
    keeps_eight_bit,
    pack,
)
from engine.models.test_fp8 import ANSWER, BY_BLOCK, CASES, PROMPT, packed
from engine.models.test_qwen3_5 import stacked
from rank_models import say_together
from safetensors.torch import load_file
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import write_checkpoint
from baton.engine.assembly.loader import build_model, load_model, planned_memory
from baton.engine.collectives.comm import Shard
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.dispatch import select
from baton.kernels.kernel_choice import KernelChoice

CPU = torch.device("cpu")
# Two blocks and a half of a side; two ranks' halves begin and end within blocks.
_WIDTH = {"moe_intermediate_size": 320}
_QWEN = {**CASES["qwen3_next"].config, "model_type": "qwen3_5_moe", **_WIDTH}
_FUSED = ("*.experts.gate_up_proj", "*.experts.down_proj")


def gate_and_up_apart(weight: Tensor) -> Packed:
    """A scale for the gate and one for the up projection of each expert, as transformers has
    them for experts by tensor: [experts, 2, 1]."""
    parts = [[WHOLE(half) for half in expert.chunk(2)] for expert in weight]
    return Packed(
        torch.stack([torch.cat([p.values for p in pair]) for pair in parts]),
        torch.stack([torch.stack([p.scales for p in pair]) for pair in parts])[..., None],
        torch.stack([torch.cat([p.expanded for p in pair]) for pair in parts]),
    )


def one_each(weight: Tensor) -> Packed:
    """A scale for each expert: [experts, 1, 1]."""
    parts = [WHOLE(expert) for expert in weight]
    columns = [[p.values for p in parts], [p.scales for p in parts], [p.expanded for p in parts]]
    values, scales, expanded = (torch.stack(tensors) for tensors in columns)
    return Packed(values, scales[:, None, None], expanded)


def fused(folder: Path, forms: Mapping[str, Form]) -> Pair:
    """Qwen3.5 with experts, as transformers 5 writes them: one tensor for each of two matrices."""
    plain = write_checkpoint(folder / "plain", _QWEN, seed=11)
    tensors = load_file(plain / FILE)
    whole = stacked(tensors)
    edit_tensors(plain, {**dict.fromkeys(tensors.keys() - whole.keys()), **whole})
    config = {"quantization_config": {**BY_BLOCK, "modules_to_not_convert": ["lm_head"]}}
    return pack(plain, forms, "_scale_inv", config)


def alone(name: str, glob: str, form: Form) -> Callable[[Path], Pair]:
    """One of the checkpoints of test_fp8.py, of which the experts alone are in FP8."""
    case = CASES[name]
    own = replace(case, config={**case.config, **_WIDTH}, forms={glob: form})
    return lambda folder: packed(own, folder)


CHECKPOINTS: dict[str, Callable[[Path], Pair]] = {
    "qwen3_next, an expert each, by block": alone("qwen3_next", "*.experts.*.weight", BLOCKS),
    "qwen3_5, fused, by block": lambda folder: fused(folder, dict.fromkeys(_FUSED, BLOCKS)),
    "qwen3_5, fused, by exponents": lambda folder: fused(folder, dict.fromkeys(_FUSED, EXPONENTS)),
    "qwen3_5, fused, by row": lambda folder: fused(folder, dict.fromkeys(_FUSED, ROWS)),
    "qwen3_5, fused, by tensor": lambda folder: fused(
        folder, {_FUSED[0]: gate_and_up_apart, _FUSED[1]: one_each}
    ),
    "granite, an expert each, by row": alone("granite, an expert each", "*.experts.*.weight", ROWS),
    "granite, stacked, by row": alone(
        "granite, stacked", "*.block_sparse_moe.*_linear.weight", ROWS
    ),
    "nemotron, by tensor": alone("nemotron", "*.experts.*.weight", WHOLE),
    "deepseek3, by block": alone("deepseek3", "*.mlp.experts.*.weight", EXPONENTS),
    "kimi, by block": alone("kimi", "*.experts.*.weight", BLOCKS),
}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return CHECKPOINTS[request.param](tmp_path_factory.mktemp("experts"))


@pytest.fixture(autouse=True)
def kept() -> None:
    if not (keeps_eight_bit(torch.float32) and keeps_eight_bit(torch.bfloat16)):
        pytest.skip("this CPU's products do not read FP8")


@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_are_those_of_the_expanded_checkpoint(pair: Pair, ranks: int) -> None:
    driver = StepDriver(load_model(EngineConfig(pair.expanded)))
    row = driver.start(PROMPT)
    answer = [int(driver.prefill(row)[-1].argmax())]
    while len(answer) < ANSWER:
        row.tokens.append(answer[-1])
        answer.append(int(driver.step(decode=[row])[0].argmax()))
    wanted = say_together(pair.expanded, PROMPT, answer, ranks, KernelChoice.AUTO)
    for dtype in (torch.float32, torch.bfloat16):
        found, expanded = (
            say_together(pair.packed, PROMPT, answer, ranks, KernelChoice.AUTO, dtype, form)
            for form in (WeightFormat.FP8, WeightFormat.MODEL)
        )
        assert torch.equal(found, expanded)
        if dtype is torch.float32:
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_experts_take_half_of_bfloat16_s_memory_as_planned(pair: Pair, ranks: int) -> None:
    sizes = {n: t.numel() for n, t in load_file(pair.packed / FILE).items() if n in pair.quantised}
    model = read_config(pair.packed, torch.bfloat16, torch.float32)
    kernels = select(CPU, torch.bfloat16, KernelChoice.AUTO)
    saved = []
    for rank in range(ranks):
        own = [
            build_model(
                model, Checkpoint(pair.packed, dtype=model.dtype), CPU, Shard(rank, ranks),
                kernels=kernels, weight_format=form,
            ).weight_bytes
            for form in (WeightFormat.MODEL, WeightFormat.FP8)
        ]  # fmt: skip
        saved.append(own[0] - own[1])
        options = EngineConfig(pair.packed, dtype=torch.bfloat16, memory_bytes=1 << 30, tp=ranks)
        if not rank:
            planned = planned_memory(options).weight_bytes
            whole = planned_memory(replace(options, weight_format=WeightFormat.MODEL)).weight_bytes
            assert whole - planned == saved[0]
    # A byte less a number, but for the scales.
    assert 0.93 < sum(saved) / sum(sizes.values()) < 1


def test_a_layer_with_one_expert_that_is_not_fp8_is_expanded(tmp_path: Path) -> None:
    """Another expert is plain, or holds a NaN: each layer's kind of matrix is of one form."""
    pair = CHECKPOINTS["qwen3_next, an expert each, by block"](tmp_path)
    options = EngineConfig(pair.packed, dtype=torch.bfloat16)
    before = load_model(options).weight_bytes
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    tensors = load_file(pair.packed / FILE)
    one = tensors[name].view(torch.uint8).clone()
    one[200, 100] = 0x7F
    edit_tensors(pair.packed, {name: one.view(FP8)})
    with_nan = load_model(options).weight_bytes
    edit_tensors(pair.packed, {name: torch.zeros(one.shape), f"{name}_scale_inv": None})
    assert load_model(options).weight_bytes == with_nan > before
    assert planned_memory(replace(options, memory_bytes=1 << 30)).weight_bytes > before - 4096
    found, wanted = (
        say_together(pair.packed, PROMPT, [7], 1, KernelChoice.AUTO, torch.bfloat16, form)
        for form in (WeightFormat.FP8, WeightFormat.MODEL)
    )
    assert torch.equal(found, wanted)
