"""These tests need a GPU, or a process that was started with TRITON_INTERPRET=1: see
tests/kernels/test_triton_interpreted.py, which starts one."""

import torch
import triton

if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    collect_ignore_glob = ["test_*.py"]
