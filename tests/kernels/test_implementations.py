"""Every implementation has every kernel, its own or one that it names as torch's."""

import subprocess
import sys

import pytest
import torch

from baton.kernels.base import Kernels
from baton.kernels.native_kernels import NativeKernels
from baton.kernels.torch_kernels import TORCH, TorchKernels
from baton.kernels.triton.triton_kernels import TritonKernels

KERNELS = Kernels.__abstractmethods__


def taken_from_torch(implementation: type[Kernels]) -> set[str]:
    return {
        name for name in KERNELS if getattr(implementation, name) is getattr(TorchKernels, name)
    }


@pytest.mark.parametrize("implementation", [NativeKernels, TritonKernels])
def test_an_implementation_names_the_kernels_that_it_leaves_to_torch(implementation):
    assert taken_from_torch(implementation) == implementation.LEFT_TO_TORCH
    assert len(KERNELS) > 30


def test_torch_has_every_kernel():
    assert not TORCH.LEFT_TO_TORCH
    assert taken_from_torch(TorchKernels) == KERNELS


def test_an_implementation_that_lacks_a_kernel_cannot_be_made():
    complete = {name: getattr(TorchKernels, name) for name in KERNELS - {"rms_norm"}}
    lacking = type("Lacking", (Kernels,), {n: staticmethod(f) for n, f in complete.items()})
    with pytest.raises(TypeError, match="rms_norm"):
        lacking()


def test_a_kernel_inherited_from_torch_does_not_go_unnoticed():
    class Inheriting(TorchKernels):
        LEFT_TO_TORCH = frozenset(KERNELS - {"rms_norm", "swiglu"})

        @staticmethod
        def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
            return x

    assert taken_from_torch(Inheriting) - Inheriting.LEFT_TO_TORCH == {"swiglu"}


IN_A_CPU_PROCESS = """
import sys
import torch
from baton.kernels.dispatch import KernelChoice, select
before = "triton" in sys.modules  # torch may have loaded it
select(torch.device("cpu"), torch.float32, KernelChoice.AUTO)
loaded = [name for name in sys.modules if name.startswith("baton.kernels.triton")]
assert not loaded, loaded
assert before or "triton" not in sys.modules
"""


def test_a_process_on_a_cpu_does_not_load_triton():
    subprocess.run([sys.executable, "-c", IN_A_CPU_PROCESS], check=True, timeout=120)


def test_only_the_native_kernels_have_the_library():
    assert TORCH.native is None and TritonKernels().native is None
    assert TritonKernels.replayable and not TORCH.replayable
