"""These tests need a GPU, or a process that was started with TRITON_INTERPRET=1: see
tests/kernels/test_triton_interpreted.py, which starts one.

`bench/gpu` runs them on machines that lack what the conftest.py above this one imports. So this
one brings all fixtures that they use."""

import torch
import triton
from random_inputs import rng

from baton.bench.gpu.interpreter import quicken

__all__ = ["rng"]

if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    collect_ignore_glob = ["test_*.py"]

quicken()
