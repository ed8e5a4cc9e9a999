"""Everything that only a GPU can show, in one run without a cluster, and one table at its end.

    PYTHONPATH=.types python -m baton.bench.gpu > bench/results/gpu.txt

Parity tests of the Triton kernels; steps of an engine in which a wait for the device is an error;
kernels against the bandwidth and the arithmetic that are measured in the same run, and against
peers that are installed; decode of 9B-class hybrids with random weights. It needs torch, triton,
safetensors, tokenizers and, for the parity tests, pytest; and about eight minutes.

--dry-run needs no GPU. Kernels are compiled for a Hopper at their real sizes, or, where
TRITON_INTERPRET=1 is set, interpreted at tiny ones; engines run small models on the CPU.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
import triton
from triton.testing import do_bench

from baton.bench.aot import HOPPER, compile_for
from baton.bench.gpu_cases import MODELS, TINY, TINY_CHANNELS, Maker, Sizes, cases
from baton.bench.gpu_engine import PROMPT, GpuEngine
from baton.bench.gpu_models import MODELS as ENGINE_MODELS
from baton.bench.gpu_models import NEMOTRON_9B, QWEN3_NEXT_HALF
from baton.bench.gpu_peers import peers

ROOT = Path(__file__).resolve().parent.parent
BUDGET_S = 560.0  # no new section begins after it
_COPIED = 4 << 30  # bytes
_PARITY = "tests/kernels/triton"


@dataclass(frozen=True)
class Line:
    """One line of the table. share: of what the limit allows, 0 to 1."""

    what: str
    value: str
    limit: str = ""
    share: float | None = None
    beside: str = ""  # the same by a peer

    def __str__(self) -> str:
        share = "" if self.share is None else f"{self.share:.0%}"
        told = f"{self.what:52} {self.value:>12} {self.limit:>12} {share:>6}  {self.beside}"
        return told.rstrip()


@dataclass
class Run:
    """Where it runs, and what it has found."""

    device: torch.device
    dry: bool
    began: float = field(default_factory=time.monotonic)
    lines: list[Line] = field(default_factory=list)
    failed: bool = False
    bandwidth: float = 0.0  # bytes a second
    arithmetic: float = 0.0  # bf16 FLOP a second

    def add(self, what: str, value: str, limit: str = "", share: float | None = None,
            beside: str = "") -> None:  # fmt: skip
        self.lines.append(Line(what, value, limit, share, beside))
        print(self.lines[-1], flush=True)

    def section(self, name: str, work: Callable[["Run"], None]) -> None:
        """A section that fails, or that time does not allow, leaves the others their turn."""
        spent = time.monotonic() - self.began
        if spent > BUDGET_S:
            self.add(f"[{name}]", f"no time left after {spent:.0f} s")
            return
        print(f"[{name}] after {spent:.0f} s", flush=True)
        try:
            work(self)
        except (RuntimeError, ValueError, ArithmeticError, triton.TritonError) as error:
            self.failed = True
            self.add(f"[{name}]", f"failed: {type(error).__name__}: {error}")


def limits(run: Run) -> None:
    """A large copy counts what it reads and writes; a large product is of random numbers."""
    if run.dry:
        run.bandwidth, run.arithmetic = 4.3e12, 7.9e14
        return
    source = torch.empty(_COPIED, dtype=torch.uint8, device=run.device).random_()
    target = torch.empty_like(source)
    run.bandwidth = 2 * _COPIED / (1e-3 * do_bench(lambda: target.copy_(source)))
    a, b = (torch.randn(8192, 8192, device=run.device, dtype=torch.bfloat16) for _ in range(2))
    run.arithmetic = 2 * 8192**3 / (1e-3 * do_bench(lambda: a @ b))
    run.add("copy", f"{run.bandwidth / 1e12:.2f} TB/s")
    run.add("bf16 product", f"{run.arithmetic / 1e12:.0f} TFLOP/s")


def parity(run: Run) -> None:
    """The tests that CI runs under the interpreter, on the GPU itself."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--import-mode=importlib", "--confcutdir", _PARITY, "-p", "no:cacheprovider"]
    command += [_PARITY, *(["--collect-only"] if run.dry else [])]
    if not run.dry and find_spec("xdist") is not None:
        command += ["-n", "8"]  # most of their time goes to compiling
    path = os.pathsep.join(str(ROOT / part) for part in (".types", "tests"))
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    said = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    if done.returncode not in (0, 5):  # 5: none was collected, where there is no GPU
        run.failed = True
        print(done.stdout[-6000:], done.stderr[-2000:], flush=True)
    run.add("parity tests", said[-1].strip("= "))


def guard(run: Run) -> None:
    for config in (NEMOTRON_9B, QWEN3_NEXT_HALF):
        name = str(config["model_type"])
        engine = GpuEngine({**config, **_few_layers(config)}, run.device, max_running=8)
        steps = engine.guarded_steps(rows=6, steps=4 if run.dry else 64)
        run.add(f"steps without a wait: {name}", f"{steps} steps")
        del engine
        _free(run)


def _few_layers(config: dict[str, object]) -> dict[str, object]:
    """Two layers of each kind: what waits once waits every time."""
    if config["model_type"] == "nemotron_h":
        return {"hybrid_override_pattern": "M-*-M-*-", "num_hidden_layers": 8}
    return {"layer_types": ["linear_attention", "full_attention"] * 2, "num_hidden_layers": 4}


def kernels(run: Run) -> None:
    if not run.dry:
        for sizes in MODELS:
            _time_kernels(run, sizes, Maker(run.device, torch.bfloat16))
            _free(run)
    elif triton.knobs.runtime.interpret:
        for sizes in (TINY, TINY_CHANNELS):
            for case in cases(sizes, Maker(run.device, torch.float32)):
                if sizes is TINY or case.name.startswith("delta"):
                    case.run()
                    run.add(f"{sizes.name} {case.name}", "interpreted")
    else:
        _compile_kernels(run)


def _compile_kernels(run: Run) -> None:
    with compile_for(HOPPER) as compiled:
        for sizes in MODELS:
            for case in cases(sizes, Maker(torch.device("meta"), torch.bfloat16)):
                before = len(compiled)
                case.run()
                for kernel in compiled[before:]:
                    run.failed |= not kernel.fits
                    run.add(f"{sizes.name} {case.name}", "fits" if kernel.fits else "DOES NOT FIT",
                            beside=str(kernel))  # fmt: skip


def _time_kernels(run: Run, sizes: Sizes, make: Maker) -> None:
    others = peers(sizes, make)
    for case in cases(sizes, make):
        seconds = _seconds(case.run)
        floor = max(case.bytes / run.bandwidth, case.flops / run.arithmetic)
        beside = ""
        if case.name in others:
            name, call = others[case.name]
            beside = f"{name} {_peer_seconds(call)}"
        run.add(f"{sizes.name} {case.name}", f"{seconds * 1e6:.1f} us", f"{floor * 1e6:.1f} us",
                floor / seconds, beside)  # fmt: skip


def _seconds(call: Callable[[], object]) -> float:
    """The median of many calls, the caches emptied before each."""
    return 1e-3 * float(do_bench(call, warmup=20, rep=60, return_mode="median"))


def _peer_seconds(call: Callable[[], object]) -> str:
    """A peer of another version may want other arguments: that is no failure of ours."""
    try:
        return f"{_seconds(call) * 1e6:.1f} us"
    except (RuntimeError, TypeError, ValueError, AssertionError, triton.TritonError) as error:
        return f"did not run: {type(error).__name__}"


def end_to_end(run: Run) -> None:
    for name, config in ENGINE_MODELS.items():
        if time.monotonic() - run.began > BUDGET_S:
            run.add(f"{name} decode", "no time left")
            continue
        for line in _decode(run, name, config):
            run.lines.append(line)
            print(line, flush=True)
        _free(run)


def _free(run: Run) -> None:
    """What the last section had on the device."""
    gc.collect()
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def _decode(run: Run, name: str, config: dict[str, object]) -> Iterator[Line]:
    batches, steps = ((1, 3), 4) if run.dry else ((1, 8, 64), 32)
    engine = GpuEngine(config, run.device, max_running=batches[-1])
    for rows in batches:
        seconds = engine.decode_seconds(rows, steps)
        floor = engine.bytes.at(rows, PROMPT) / run.bandwidth
        yield Line(
            f"{name} decode, {rows} rows, a step",
            f"{seconds * 1e3:.2f} ms",
            f"{floor * 1e3:.2f} ms",
            floor / seconds,
            f"{rows / seconds:.0f} tok/s",
        )
    tokens = 40 if run.dry else 2048
    seconds = engine.prefill_seconds(tokens)
    first = f"{name} first token of {tokens}"
    yield Line(first, f"{seconds * 1e3:.1f} ms", beside=f"{tokens / seconds:.0f} tok/s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything that only a GPU can show.")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: up to the launch")
    dry = parser.parse_args().dry_run
    if not dry and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --dry-run checks everything up to the launch without one")
    run = Run(torch.device("cpu" if dry else "cuda"), dry)
    sections = (limits, parity, guard, kernels, end_to_end)
    for section in sections:
        run.section(section.__name__, section)
    chip = "dry run" if dry else torch.cuda.get_device_name()
    print(f"\n{time.strftime('%Y-%m-%d')}  {chip}  torch {torch.__version__}  "
          f"triton {triton.__version__}  Python {sys.version.split()[0]}")  # fmt: skip
    print(f"{'':52} {'measured':>12} {'limit':>12} {'share':>6}  beside")
    for line in run.lines:
        print(line)
    return int(run.failed)


if __name__ == "__main__":
    sys.exit(main())
