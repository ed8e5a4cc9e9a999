"""Weights that are rounded to 8 bits at load: those of a checkpoint that was rounded before, how
far they move the next token, and what they save."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from eight_bit_packing import FILE, FP8, ROWS, Form, edit_tensors, in_blocks, keeps_eight_bit, pack
from engine.models.test_fp8 import CASES, LLAMA, PROMPT, split_experts
from engine.models.test_fp8_kept import ANSWER
from oracle.reference import Oracle
from oracle.specs import DENSE, SPECS
from rank_models import say_together
from safetensors.torch import load_file
from step_driver import StepDriver

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.errors import ConfigError
from baton.engine.assembly.loader import load_model, planned_memory
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.dispatch import KernelChoice

# Mean KL(float32 || int8) of the next token, in nats, at logits of standard deviation one.
# Measured: 2e-4 to 4e-3, about twice what bfloat16 costs; up to 7e-3 for the Falcon-H1 whose
# mixers are not normed.
KL_BOUND = 1e-2
PROMPTS, LENGTH = 5, 36  # the prompts' median counts; see test_bf16.py
FORMS = {WeightFormat.FP8: ROWS, WeightFormat.INT8: in_blocks(1, None, stored=torch.int8)}
# Parts of the names of what stays as it is.
LEFT = (
    "embed", "lm_head", "A_log", "router", ".gate.weight", "conv1d", "norm", "kv_b_proj",
    "in_proj_ba",
    "in_proj_a.", "in_proj_b.", ".b_proj", ".f_a_proj", ".f_b_proj", ".g_a_proj", ".g_b_proj",
    "shared_expert_gate",
)  # fmt: skip
TABLES = ("embed_tokens.weight", "lm_head.weight")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not keeps_eight_bit(request.param):
        pytest.skip("this CPU's products do not read 8 bits")
    return request.param


def forms_of(folder: Path, form: Form, more: tuple[str, ...] = ()) -> Iterator[tuple[str, Form]]:
    """Yield the matrices that are rounded, and those whose names end in one of `more`."""
    for name, tensor in load_file(folder / FILE).items():
        taken = tensor.dim() > 1 and not any(part in name for part in LEFT)
        if taken or name.endswith(more or ("none",)):
            yield name, form


def rounded_before(plain: Path, form: Form, more: tuple[str, ...] = ()) -> Path:
    """Write the numbers that the rounded matrices stand for, as the reference has them."""
    return pack(plain, dict(forms_of(plain, form, more)), "_scale", {}).expanded


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_answers_have_the_bits_of_the_checkpoint_that_was_rounded_before(
    tmp_path: Path, name: str, ranks: int, dtype: torch.dtype, form: WeightFormat
) -> None:
    plain = write_checkpoint(tmp_path / "plain", CASES[name].config, seed=11)
    if CASES[name].split_experts:
        split_experts(plain)
    reference = rounded_before(plain, FORMS[form])
    found, wanted = (
        say_together(folder, PROMPT, ANSWER, ranks, KernelChoice.AUTO, dtype, each)
        for folder, each in ((plain, form), (reference, WeightFormat.MODEL))
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_so_have_those_with_a_rounded_vocabulary(
    tmp_path: Path, tied: bool, ranks: int, dtype: torch.dtype, form: WeightFormat
) -> None:
    config = {**LLAMA, "tie_word_embeddings": tied}
    plain = write_checkpoint(tmp_path / "plain", config, seed=11)
    reference = rounded_before(plain, FORMS[form], TABLES)
    found = say_together(
        plain, PROMPT, ANSWER, ranks, KernelChoice.AUTO, dtype, form, round_vocabulary=True
    )
    wanted = say_together(
        reference, PROMPT, ANSWER, ranks, KernelChoice.AUTO, dtype, WeightFormat.MODEL
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_rounded_is_planned_so(
    tmp_path: Path, dtype: torch.dtype, form: WeightFormat
) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=11)
    options = EngineConfig(plain, dtype=dtype, memory_bytes=1 << 28)
    sizes = []
    for each in (
        options,
        replace(options, weight_format=form),
        replace(options, weight_format=form, round_vocabulary=True),
    ):
        sizes.append(load_model(each).weight_bytes)
        assert planned_memory(each).weight_bytes <= sizes[-1]  # other matrices may be padded
    assert sizes[0] > 1.3 * sizes[1] > 1.3 * sizes[2]


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_with_an_infinity_stays_as_it_is(
    tmp_path: Path, dtype: torch.dtype, form: WeightFormat
) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    options = EngineConfig(plain, dtype=dtype, weight_format=form)
    before = load_model(options).weight_bytes
    name = "model.layers.1.mlp.down_proj.weight"
    weight = load_file(plain / FILE)[name].clone()
    weight[7, 5] = float("inf")
    edit_tensors(plain, {name: weight})
    assert load_model(options).weight_bytes > before


def test_a_row_of_zeros_stays_one(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = load_file(plain / FILE)[name].clone()
    weight[:48] = 0
    edit_tensors(plain, {name: weight})
    for form in FORMS:
        driver = StepDriver(load_model(EngineConfig(plain, dtype=dtype, weight_format=form)))
        assert driver.prefill(driver.start(PROMPT)).isfinite().all()


def test_a_quantised_checkpoint_is_not_rounded_to_fp8_beyond_its_author_s_choice(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    section = {"quantization_config": {"quant_method": "fp8"}}
    folder = pack(plain, {"*.mlp.*.weight": ROWS}, "_scale_inv", section).packed
    options = EngineConfig(folder, dtype=dtype)
    asked = replace(options, weight_format=WeightFormat.FP8)
    assert load_model(asked).weight_bytes == load_model(options).weight_bytes
    # A configuration that says nothing leaves the choice to the option; what the files have in FP8
    # stays so.
    (folder / "config.json").write_text((plain / "config.json").read_text())
    assert load_model(asked).weight_bytes < load_model(options).weight_bytes
    assert load_file(folder / FILE)["model.layers.0.mlp.up_proj.weight"].dtype is FP8


@pytest.mark.parametrize("form", [WeightFormat.AUTO, WeightFormat.MODEL])
def test_a_vocabulary_is_rounded_with_other_weights_alone(
    tmp_path: Path, form: WeightFormat
) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=4)
    config = EngineConfig(plain, weight_format=form, round_vocabulary=True)
    with pytest.raises(ConfigError, match=r"round_vocabulary .*weight_format fp8 or int8"):
        load_model(config)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("kernels", KernelChoice)
def test_int8_stays_near_the_float32_model(
    oracle: Oracle, name: str, chunk: int | None, kernels: KernelChoice
) -> None:
    folder = oracle.checkpoint(name)
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    config = EngineConfig(
        model=folder, weight_format=WeightFormat.INT8, round_vocabulary=True, kernels=kernels
    )
    model = load_model(config)
    costs = []
    for _ in range(PROMPTS):
        prompt = [rng.randrange(3, SPECS[name].config["vocab_size"]) for _ in range(LENGTH)]
        driver = StepDriver(model)
        got = driver.prefill(driver.start(prompt), chunk)
        costs.append(mean_kl(oracle.logits(folder, prompt), got))
        print(f"seed {seed}: KL {costs[-1]:.1e}")
    assert 0.0 < median(costs) <= KL_BOUND


def mean_kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    log_p, log_q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def test_int8_takes_a_quarter_of_float32_s_memory(tmp_path: Path) -> None:
    config = EngineConfig(model=write_checkpoint(tmp_path / "model", GRANITE_SMALL))
    whole = load_model(config).weight_bytes
    rounded = replace(config, weight_format=WeightFormat.INT8, round_vocabulary=True)
    assert whole / 4 < load_model(rounded).weight_bytes < whole / 3.8
