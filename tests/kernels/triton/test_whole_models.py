"""Whole models on Triton's kernels, their decode steps captured, against torch's kernels."""

import random
from pathlib import Path

import pytest
import torch
from oracle.specs import SPECS
from rerun_capture import RerunCapture
from step_driver import StepDriver
from triton_device import DEVICE, assert_near

from baton.bench.checkpoints import write_checkpoint
from baton.engine.assembly.loader import build_model
from baton.engine.loading.weights import DummyWeights
from baton.engine.models.family_table import read_config
from baton.engine.replay.graphed_model import CudaCapture, GraphedModel
from baton.kernels.triton.triton_kernels import TritonKernels


@pytest.mark.parametrize(
    "name", ["granite_moe_rope", "qwen3_next_moe", "lfm2_odd", "deepseek2_grouped", "zamba2_odd"]
)
def test_prompts_and_captured_decode_steps_say_what_torchs_say(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    folder = write_checkpoint(tmp_path, {**spec.config, "model_type": spec.model_type})
    config = read_config(folder, torch.float32, torch.float32)
    reference = StepDriver(build_model(config, DummyWeights(), torch.device("cpu")))
    ours = build_model(config, DummyWeights(), DEVICE, kernels=TritonKernels())
    capture = CudaCapture() if DEVICE.type == "cuda" else RerunCapture()
    driver = StepDriver(GraphedModel(ours, 4, capture), device=DEVICE)
    prompts = [[rng.randrange(3, 320) for _ in range(length)] for length in (6, 1, 3)]
    rows, others = ([d.start(prompt) for prompt in prompts] for d in (reference, driver))
    logits = torch.cat(reference.step(prefill=[(row, len(row.tokens)) for row in rows]))
    own = torch.cat(driver.step(prefill=[(row, len(row.tokens)) for row in others]))
    assert_near(own, logits, 1e-4)
    for _ in range(2):
        for row, other in zip(rows, others, strict=True):
            row.tokens.append(rng.randrange(3, 320))
            other.tokens.append(row.tokens[-1])
        logits = torch.cat(reference.step(decode=rows))
        assert_near(torch.cat(driver.step(decode=others)), logits, 1e-4)
