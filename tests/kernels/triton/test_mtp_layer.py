"""The layer of multi-token prediction on Triton's kernels, its steps captured, against torch's."""

import random
from pathlib import Path

import pytest
import torch
from mtp_models import draft, entries_in, hidden_of
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


@pytest.mark.parametrize("name", ["qwen3_next_moe", "deepseek3_grouped"])
def test_entries_hidden_states_and_drafts_are_torchs(name: str, tmp_path: Path) -> None:
    spec, rng = SPECS[name], random.Random(name)
    fields = {**spec.config, "num_nextn_predict_layers": 1, "model_type": spec.model_type}
    config = read_config(write_checkpoint(tmp_path, fields), torch.float32, torch.float32, mtp=True)
    reference = StepDriver(build_model(config, DummyWeights(), torch.device("cpu")))
    ours = build_model(config, DummyWeights(), DEVICE, kernels=TritonKernels())
    capture = CudaCapture() if DEVICE.type == "cuda" else RerunCapture()
    driver = StepDriver(GraphedModel(ours, 4, capture), device=DEVICE)
    prompts = [[rng.randrange(3, 320) for _ in range(length)] for length in (6, 1, 3)]
    rows, others = ([d.start(prompt) for prompt in prompts] for d in (reference, driver))
    for own, mine in ((reference, rows), (driver, others)):
        own.step(prefill=[(row, len(row.tokens)) for row in mine])
    newest = [rng.randrange(3, 320) for _ in rows]
    for own, mine in ((reference, rows), (driver, others)):
        for row, token in zip(mine, newest, strict=True):
            row.tokens.append(token)
        own.step(decode=mine)
    for row, other in zip(rows, others, strict=True):
        expected = entries_in(reference.pages, row.pages, row.computed)
        assert_near(entries_in(driver.pages, other.pages, other.computed), expected, 1e-4)
    before, hidden = hidden_of(reference, rows), hidden_of(driver, others)
    assert_near(hidden, before, 1e-4)
    for depth in range(2):
        newest = [rng.randrange(3, 320) for _ in rows]
        expected, before = draft(reference, rows, newest, depth, before)
        found, hidden = draft(driver, others, newest, depth, hidden)
        assert_near(found, expected, 1e-4)
