"""The script for a GPU machine, as far as a machine without one can run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton.bench.gpu.device_engine import fitted, options_of
from baton.bench.gpu.models import MODELS
from baton.bench.gpu.sizes import GRANITE_SMALL, NEMOTRON_9B

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it runs for real, not in a test")
def test_a_dry_run_gets_through_every_section():
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu", "--dry-run"],
        cwd=ROOT,
        env=os.environ | threads | {"PYTHONPATH": str(ROOT / ".types")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    table = done.stdout[done.stdout.rindex("dry run") :]
    assert not any(
        bad in table for bad in ("failed", "no time left", "stopped", "ended with", "DIFFERENT")
    )
    for section in (
        "parity tests", "steps without a wait", "two ranks, answers", "tiny mamba2_prefill",
        "first token",
    ):  # fmt: skip
        assert section in table, section
    (parity,) = (line for line in table.splitlines() if line.startswith("parity tests"))
    assert "1 passed" in parity


def test_without_a_gpu_it_says_what_it_can_do():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu"], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / ".types")}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "--dry-run" in done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_cut_to_the_layers_that_a_card_holds(name: str):
    config, options = MODELS[name], options_of(Path(), torch.device("cuda", 0), 64)
    card = 78 << 30
    assert (
        fitted(config, options, card)["num_hidden_layers"]
        == {
            "Nemotron-Nano-9B-v2": 56,
            "Granite-4.0-H-small": 36,
            "Qwen3-Next-80B-A3B": 20,
            "Kimi-Linear-48B-A3B": 16,
        }[name]
    )
    assert fitted(config, options, card * 4) == config


def test_mamba_layers_are_timed_with_the_chunks_that_the_model_is_served_with():
    """Longer chunks pass fewer states, so a kernel would be timed on less than its work."""
    for sizes in (NEMOTRON_9B, GRANITE_SMALL):
        config = MODELS[sizes.name]
        assert sizes.mamba is not None
        assert sizes.mamba[-1] == config.get("chunk_size", config.get("mamba_chunk_size"))
