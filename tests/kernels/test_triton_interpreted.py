"""The Triton kernels' tests, in a process where Triton interprets what it would compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
DEADLINE_S = 1200.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the GPU, in this process")
@pytest.mark.timeout(DEADLINE_S + 60)
def test_triton_kernels_match_their_references_under_the_interpreter():
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", str(HERE / "triton")],
        env=os.environ | threads | {"TRITON_INTERPRET": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
