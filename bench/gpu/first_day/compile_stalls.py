"""Steps that wait for Triton's compiler while an engine serves requests that come at random.

Two laps of the same kind of load: what the first compiles, serving waited for; the second must
compile nothing, or else variants never end. Decode steps are captured, and so compiled, before.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import triton

from baton.bench.gpu.device_engine import GpuEngine
from baton.bench.gpu.models import FEW_LAYERS
from baton.bench.gpu.parts import Part

_MEMORY_BYTES = 16 << 30  # other scripts may run beside it


@dataclass
class Compilations:
    """The variants that Triton has made while it was watched, and the seconds of each; of those
    that lie in its cache on disk, to load them."""

    seconds: list[tuple[str, float]] = field(default_factory=list)
    _began: float = 0.0

    def begin(self, **_: Any) -> None:
        """Note the time; Triton calls it when it lacks a variant. None: it shall go on."""
        self._began = time.perf_counter()

    def end(self, *, fn: Any, **_: Any) -> None:
        """Count a variant; Triton calls it when it has one."""
        self.seconds.append((fn.name, time.perf_counter() - self._began))


@contextmanager
def watched_compilations() -> Iterator[Compilations]:
    """Yield the variants that are compiled inside."""
    found, runtime = Compilations(), triton.knobs.runtime
    before = runtime.jit_cache_hook, runtime.jit_post_compile_hook
    runtime.jit_cache_hook, runtime.jit_post_compile_hook = found.begin, found.end
    try:
        yield found
    finally:
        runtime.jit_cache_hook, runtime.jit_post_compile_hook = before


def compile_stalls(part: Part) -> None:
    """Count for each family."""
    for config in FEW_LAYERS:
        part.row(str(config["model_type"]), partial(_laps, config, part))


def _laps(config: dict[str, Any], part: Part) -> None:
    name = config["model_type"]
    steps, longest, rows = (12, 100, 4) if part.dry else (300, 1500, 32)
    with watched_compilations() as at_start:
        engine = GpuEngine(config, part.device, max_running=rows, memory_bytes=_MEMORY_BYTES)
    part.add(f"{name}: compiled at start", f"{len(at_start.seconds)}")
    arrivals = random.Random(0)
    for lap in (1, 2):
        with watched_compilations() as compiled:
            stalled, others = _steps(engine, steps, longest, arrivals, compiled)
        count, spent = len(compiled.seconds), sum(seconds for _, seconds in compiled.seconds)
        waited = f"{len(stalled)} steps waited, {spent:.1f} s"
        longest_s, usual_s = max(stalled, default=0.0), median(others or [0.0])
        kernels = ", ".join(sorted({kernel for kernel, _ in compiled.seconds}))
        part.add(
            f"{name}: lap {lap}",
            f"{count} compiled",
            beside=f"{waited}, longest {longest_s:.2f} s, others {1e3 * usual_s:.1f} ms {kernels}",
            failed=lap == 2 and count > 0,
        )


def _steps(
    engine: GpuEngine, steps: int, longest: int, arrivals: random.Random, compiled: Compilations
) -> tuple[list[float], list[float]]:
    """Return the seconds of the steps that compiled, and those of the others."""
    stalled: list[float] = []
    others: list[float] = []
    for _ in range(steps):
        if arrivals.random() < 0.3:
            engine.submit_any(arrivals, longest)
        count, began = len(compiled.seconds), time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - began
        (stalled if len(compiled.seconds) > count else others).append(seconds)
    return stalled, others
