"""Nemotron-H where transformers differs from itself: dt is clamped at prefill, not at decode."""

import json
import shutil
from pathlib import Path

import torch
from oracle.reference import LOGIT_BOUND, Oracle
from oracle.specs import SPECS
from step_driver import StepDriver

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig

NAME = "nemotron_dense"


def _with(folder: Path, to: Path, **change: object) -> Path:
    """A copy of the checkpoint whose config says otherwise."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **change}))
    return to


def _logits(folder: Path, prompt: list[int]) -> torch.Tensor:
    driver = StepDriver(load_model(EngineConfig(model=folder)))
    return driver.prefill(driver.start(prompt))


def test_only_time_step_limit_clamps_and_stock_transformers_differs(
    oracle: Oracle, tmp_path: Path
) -> None:
    folder = oracle.checkpoint(NAME)
    stock = _with(folder, tmp_path / "stock", time_step_min=0.001)
    limited = _with(folder, tmp_path / "limited", time_step_limit=[0.02, 0.05])
    generator = torch.Generator().manual_seed(5)
    vocab = SPECS[NAME].config["vocab_size"]
    prompt = torch.randint(3, vocab, (120,), generator=generator).tolist()
    ours = _logits(stock, prompt)
    assert torch.equal(ours, _logits(folder, prompt)), "time_step_min has no part in it"
    assert not torch.allclose(ours, _logits(limited, prompt), atol=0.01)
    apart = float((ours - oracle.logits(stock, prompt)).abs().max())
    print(f"largest difference to stock transformers: {apart:.1e} of logits of deviation one")
    assert LOGIT_BOUND < apart < 0.2
