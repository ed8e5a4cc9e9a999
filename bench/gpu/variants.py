"""The variants of kernels that launches ask Triton's compiler for, counted without compiling any.

Triton compiles a kernel again for each combination of its arguments' types, of integers that are
one, divisible by 16 or neither, of pointers that are divisible by 16 or not, and of constants. The
first launch of each combination waits for the compiler, and all requests wait with it.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from baton.bench.gpu.aot import HOPPER, AbsentDriver

# What Triton knows of each argument, its options last.
Variant = tuple[str, ...]


@dataclass
class Variants:
    """The variants that were launched, by the name of the kernel with its module's."""

    of: dict[str, set[Variant]] = field(default_factory=lambda: defaultdict(set))
    _names: dict[str, Variant] = field(default_factory=dict)  # of the arguments

    def __len__(self) -> int:
        return sum(map(len, self.of.values()))

    def add(self, kernel: str, arguments: Variant, variant: Variant) -> None:
        """Count one launch. arguments: their names, one for each entry of `variant`."""
        self._names[kernel] = arguments
        self.of[kernel].add(variant)

    def without(self, others: "Variants") -> "Variants":
        """Return the variants that are not among `others`."""
        rest = {kernel: known - others.of[kernel] for kernel, known in self.of.items()}
        return Variants(
            defaultdict(set, {kernel: known for kernel, known in rest.items() if known}),
            self._names,
        )

    def varying(self, kernel: str) -> dict[str, set[str]]:
        """Return what is known of each argument of one kernel that is not always the same."""
        columns = zip(self._names[kernel], zip(*self.of[kernel], strict=True), strict=True)
        found = {name: set(column) for name, column in columns}
        return {name: known for name, known in found.items() if len(known) > 1}

    def __str__(self) -> str:
        lines = [
            f"{kernel}: {len(self.of[kernel])}, by "
            + "; ".join(f"{name} {sorted(known)}" for name, known in self.varying(kernel).items())
            for kernel in sorted(self.of, key=lambda kernel: -len(self.of[kernel]))
            if len(self.of[kernel]) > 1
        ]
        return "\n".join([f"{len(self)} variants of {len(self.of)} kernels", *lines])


@contextmanager
def counted_variants(target: GPUTarget = HOPPER) -> Iterator[Variants]:
    """Yield the variants that launches inside ask for. Nothing is compiled, and nothing runs.

    Not usable under Triton's interpreter.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are interpreted, not compiled")
    found = Variants()
    launch = JITFunction.run

    def count_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        _, _, _, _, bind = self.device_caches[driver.active.get_current_device()]
        _, known, options = bind(*args, **options)
        module = self.__module__.removeprefix("baton.kernels.triton.")
        names = (*(parameter.name for parameter in self.params), "options")
        found.add(f"{module}.{self.__name__}", names, (*map(str, known), str(options)))

    JITFunction.run = count_only
    driver.set_active(AbsentDriver(target))
    try:
        yield found
    finally:
        JITFunction.run = launch
        driver._active = None
