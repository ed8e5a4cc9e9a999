"""Ahead-of-time compilation of Triton kernels for a GPU that this machine need not have.

Inside `compile_for(target)` each launch compiles its kernel as the GPU's own driver would require,
and runs nothing. Tensors may be on the device "meta", where they take no memory.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
BLACKWELL = GPUTarget("cuda", 100, 32)
SHARED_LIMIT = 227 * 1024  # bytes that one block may have, on both


@dataclass(frozen=True)
class Compiled:
    """One compiled variant of a kernel.

    Sizes are in bytes, `registers` is a count; None where the disassembler gives no figure.
    """

    name: str
    warps: int
    shared: int
    registers: int | None
    stack: int | None  # bytes of a thread: spilled registers or arrays
    long_divisions: int  # 64-bit divisions, each a call of a hundred instructions
    # The program as it is written, with layouts and pipelines for this GPU, and for the assembler.
    ttir: str = field(repr=False)
    ttgir: str = field(repr=False)
    ptx: str = field(repr=False)

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_LIMIT and not self.stack

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.warps} warps, {self.shared} bytes shared, "
            f"{self.registers} registers, {self.stack} bytes of stack"
        )


class AbsentDriver:
    """A stand-in for Triton's driver with the answers that a launch needs."""

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
    """Yield the list to which each compiled variant is added once.

    Not usable under Triton's interpreter.
    """
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
    driver.set_active(AbsentDriver(target))
    try:
        yield compiled
    finally:
        JITFunction.run = launch
        driver._active = None


def _describe(kernel: Any) -> Compiled:
    registers, stack = _resources(kernel.asm["cubin"])
    meta = kernel.metadata
    stages = [kernel.asm[stage] for stage in ("ttir", "ttgir", "ptx")]
    divisions = len(re.findall(r"\b(?:div|rem)\.[su]64\b", stages[-1]))
    return Compiled(meta.name, meta.num_warps, meta.shared, registers, stack, divisions, *stages)


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Return registers and stack bytes per thread, from the tool that ships with Triton."""
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
