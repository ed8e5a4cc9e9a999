"""Triton kernels compiled for a GPU that is not here, from the calls that would launch them.

Inside `compile_for(target)` a launch compiles its kernel, exactly as the GPU's own driver would
have it, and runs nothing. Tensors may be on the device "meta": they take no memory.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 227 * 1024  # bytes that one block may have, on Hopper
REGISTER_LIMIT = 255


@dataclass(frozen=True)
class Compiled:
    """One variant of a kernel. Bytes, but for registers; what the disassembler does not say is
    None."""

    name: str
    warps: int
    shared: int
    registers: int | None
    stack: int | None  # of a thread: registers that were spilled, or arrays that had no place
    long_divisions: int  # of 64 bits, each a call of some hundred instructions

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_LIMIT and not self.stack

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.warps} warps, {self.shared} bytes shared, "
            f"{self.registers} registers, {self.stack} bytes of stack"
        )


class _AbsentDriver:
    """What Triton asks of a driver before it launches."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def compile_for(target: GPUTarget = HOPPER) -> Iterator[list[Compiled]]:
    """Gives the list that the variants go to, each once. Not under Triton's interpreter."""
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are interpreted, not compiled")
    found: dict[int, Compiled] = {}
    compiled: list[Compiled] = []
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        if id(kernel) not in found:
            found[id(kernel)] = _describe(kernel)
            compiled.append(found[id(kernel)])
        return kernel

    JITFunction.run = compile_only
    driver.set_active(_AbsentDriver(target))
    try:
        yield compiled
    finally:
        JITFunction.run = launch
        driver._active = None


def _describe(kernel: Any) -> Compiled:
    registers, stack = _resources(kernel.asm["cubin"])
    meta = kernel.metadata
    divisions = len(re.findall(r"\b(?:div|rem)\.[su]64\b", kernel.asm["ptx"]))
    return Compiled(meta.name, meta.num_warps, meta.shared, registers, stack, divisions)


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and stack bytes of a thread, from the tool that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None, None
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, check=False)
    said = re.search(rb"REG:(\d+) STACK:(\d+)", done.stdout)
    return (int(said[1]), int(said[2])) if said else (None, None)
