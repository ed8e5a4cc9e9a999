"""8-bit weights: how far they move the next token, and what they save."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from oracle.reference import Oracle
from oracle.specs import DENSE, SPECS
from step_driver import StepDriver

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.engine.assembly.loader import load_model
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.dispatch import KernelChoice

# Mean KL(float32 || int8) of the next token, in nats, at logits of standard deviation one.
# Measured: 2e-4 to 4e-3, about twice what bfloat16 costs; up to 7e-3 for the Falcon-H1 whose
# mixers are not normed.
KL_BOUND = 1e-2
PROMPTS, LENGTH = 5, 36  # the prompts' median counts; see test_bf16.py


def mean_kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    log_p, log_q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("kernels", KernelChoice)
def test_int8_stays_near_the_float32_model(
    oracle: Oracle, name: str, chunk: int | None, kernels: KernelChoice
) -> None:
    folder = oracle.checkpoint(name)
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    config = EngineConfig(model=folder, weight_format=WeightFormat.INT8, kernels=kernels)
    model = load_model(config)
    costs = []
    for _ in range(PROMPTS):
        prompt = [rng.randrange(3, SPECS[name].config["vocab_size"]) for _ in range(LENGTH)]
        driver = StepDriver(model)
        got = driver.prefill(driver.start(prompt), chunk)
        costs.append(mean_kl(oracle.logits(folder, prompt), got))
        print(f"seed {seed}: KL {costs[-1]:.1e}")
    assert 0.0 < median(costs) <= KL_BOUND


def test_int8_takes_a_quarter_of_the_memory(tmp_path: Path) -> None:
    config = EngineConfig(model=write_checkpoint(tmp_path / "model", GRANITE_SMALL))
    whole = load_model(config).weight_bytes
    rounded = load_model(replace(config, weight_format=WeightFormat.INT8)).weight_bytes
    assert whole / 4 < rounded < whole / 3.8
