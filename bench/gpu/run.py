"""Everything that only a GPU can show, in one run without a cluster, and one table at its end.

    PYTHONPATH=.types python -m baton.bench.gpu > bench/results/gpu.txt

Parity tests of the Triton kernels; steps of an engine in which a wait for the device is an error;
two ranks beside one, where there are two GPUs; decode of 9B-class hybrids with random weights;
kernels against the bandwidth and the arithmetic that are measured in the same run, and against
peers that are installed. It needs torch, triton, safetensors, tokenizers and, for the parity tests,
pytest, and takes under ten minutes. --only runs some of the parts. Each part has a process of its
own: if one fails, hangs or loses the device, the others still run, and the table is printed in any
case.

--dry-run needs no GPU. Kernels are compiled for a Hopper at their real sizes, or, where
TRITON_INTERPRET=1 is set, interpreted at tiny ones; engines run small models on the CPU.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
import triton
from triton.testing import do_bench

from baton.bench.gpu.aot import HOPPER, compile_for
from baton.bench.gpu.device_engine import PROMPT, GpuEngine
from baton.bench.gpu.interpreter import quicken
from baton.bench.gpu.kernel_cases import KernelCase, cases
from baton.bench.gpu.kernel_peers import peers
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.models import FEW_LAYERS, QWEN3_NEXT, with_layers
from baton.bench.gpu.models import MODELS as ENGINE_MODELS
from baton.bench.gpu.parts import GpuRun, Limits, Part, Task
from baton.bench.gpu.sizes import MODELS, TINY, TINY_CHANNELS, Sizes
from baton.engine.settings.choices import SpeculativeAlgorithm

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 570.0  # for all parts: with a margin, ten minutes
_COPIED = 4 << 30  # bytes
_FEWER_LAYERS = 12  # of a model that is measured in more than one way
RANKS = 2
_PARITY = "tests/kernels/triton"
DRY_TEST = "test_layers_that_commit_together and mamba2"
"""The tests that a dry run interprets: few and small, but with fixtures, which have to be found."""
_LEAST_ROW_S = 5.0  # least time left to begin a row
_TOLD_S = 2.0  # of a part, in which it tells how far it came


def limits(part: Part) -> None:
    """Measure bandwidth by a large copy (bytes read and written) and arithmetic by a large
    product.
    """
    if part.dry:
        part.measured(Limits(chip="dry run"))
        return
    source = torch.empty(_COPIED, dtype=torch.uint8, device=part.device).random_()
    target = torch.empty_like(source)
    bandwidth = 2 * _COPIED / (1e-3 * do_bench(lambda: target.copy_(source)))
    a, b = (torch.randn(8192, 8192, device=part.device, dtype=torch.bfloat16) for _ in range(2))
    arithmetic = 2 * 8192**3 / (1e-3 * do_bench(lambda: a @ b))
    part.measured(Limits(bandwidth, arithmetic, torch.cuda.get_device_name()))
    part.add("copy", f"{bandwidth / 1e12:.2f} TB/s")
    part.add("bf16 product", f"{arithmetic / 1e12:.0f} TFLOP/s")


def parity(part: Part) -> None:
    """Run on the GPU the tests that CI runs under Triton's interpreter."""
    command = [sys.executable, "-m", "pytest", "-v", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--import-mode=importlib", "--confcutdir", _PARITY, "-p", "no:cacheprovider"]
    command += [_PARITY]
    if part.dry:  # nothing is collected where Triton would compile for a GPU that is not there
        command += ["-k", DRY_TEST]
    elif find_spec("xdist") is not None:
        command += ["-n", "8"]  # most of their time goes to compiling
    path = os.pathsep.join(str(ROOT / folder) for folder in (".types", "tests", "examples"))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with TemporaryFile("w+") as said:
        tests = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
        ended = _ends(tests, part)
        said.seek(0)
        lines = said.read().strip().splitlines() or ["no output"]
    failed = not ended or tests.returncode not in (0, 5)  # 5: none was collected, without a GPU
    if failed:
        print(*lines[-120:], sep="\n", flush=True)
    verdict = lines[-1].strip("= ")
    if not ended:
        counts = Counter(word for line in lines for word in ("PASSED", "FAILED") if word in line)
        verdict = f"stopped; {counts['PASSED']} passed, {counts['FAILED']} failed until then"
    part.add("parity tests", verdict, failed=failed)


def _ends(process: subprocess.Popen[bytes], part: Part) -> bool:
    """Wait for a process until the part's time is over; kill it then, and return False."""
    while part.left_s > _TOLD_S:
        try:
            process.wait(1.0)
            return True
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    return False


def guard(config: dict[str, Any], part: Part) -> None:
    engine = GpuEngine(config, part.device, max_running=8)
    steps = engine.guarded_steps(rows=6, steps=4 if part.dry else 64)
    part.add(f"steps without a wait: {config['model_type']}", f"{steps} steps")


def decode(name: str, part: Part) -> None:
    """Measure one model: loading, the first token, and steps."""
    batches, steps = ((1, 3), 4) if part.dry else ((1, 8, 64), 32)
    config = ENGINE_MODELS[name]
    engine = GpuEngine(config, part.device, max_running=batches[-1])
    if engine.layers < config["num_hidden_layers"]:
        name += f", {engine.layers} of {config['num_hidden_layers']} layers"
    for rows in batches:
        seconds = engine.decode_seconds(rows, steps)
        floor = engine.bytes.at(rows, PROMPT) / part.limits.bandwidth
        part.add(
            f"{name} decode, {rows} rows, a step",
            f"{seconds * 1e3:.2f} ms",
            f"{floor * 1e3:.2f} ms",
            floor / seconds,
            f"{rows / seconds:.0f} tok/s",
        )
    tokens = 40 if part.dry else 2048
    seconds = engine.prefill_seconds(tokens)
    part.add(f"{name} first token of {tokens}", f"{seconds * 1e3:.1f} ms",
             beside=f"{tokens / seconds:.0f} tok/s")  # fmt: skip


def long_contexts(part: Part) -> None:
    """Measure steps of many rows and of long contexts, steps with a prompt beside decoding rows,
    and a short turn behind a long prefix."""
    most, long, longest, few, steps = (
        (4, 200, 256, 3, 4) if part.dry else (256, 8192, 32768, 16, 16)
    )
    config = with_layers(QWEN3_NEXT, _FEWER_LAYERS)
    engine = GpuEngine(config, part.device, max_running=most, longest=longest + 256)
    name = f"Qwen3-Next, {_FEWER_LAYERS} layers"
    for rows, context in ((most, None), (few, long), (1, longest)):
        seconds = engine.decode_seconds(rows, steps, context)
        floor = engine.bytes.at(rows, context or PROMPT) / part.limits.bandwidth
        part.add(
            f"{name}, {rows} rows of {context or PROMPT} tokens, a step",
            f"{seconds * 1e3:.2f} ms",
            f"{floor * 1e3:.2f} ms",
            floor / seconds,
        )
    for tokens in (16, 48) if part.dry else (128, 2048):
        seconds = engine.mixed_seconds(few, tokens, steps)
        part.add(f"{name}, {few} rows beside a prompt of {tokens}", f"{seconds * 1e3:.2f} ms")
    seconds = engine.turn_seconds(longest, 16)
    part.add(f"{name}, 16 tokens behind {longest}", f"{seconds * 1e3:.2f} ms")


def decode_mtp(part: Part) -> None:
    """Compare steps that verify three drafts by the model's own layer with steps without: of random
    weights almost no draft is right, so this is what drafts cost."""
    batches, steps = ((1, 3), 4) if part.dry else ((1, 8, 64), 32)
    config = with_layers(QWEN3_NEXT, _FEWER_LAYERS)
    seconds: dict[SpeculativeAlgorithm, list[float]] = {}
    for drafts in (SpeculativeAlgorithm.OFF, SpeculativeAlgorithm.MTP):
        engine = GpuEngine(config, part.device, max_running=batches[-1], drafts=drafts)
        seconds[drafts] = [engine.decode_seconds(rows, steps) for rows in batches]
        right = engine.accepted
        engine.close()
        del engine
    for rows, plain, drafting in zip(batches, *seconds.values(), strict=True):
        part.add(
            f"Qwen3-Next, {_FEWER_LAYERS} layers and MTP, {rows} rows, a step",
            f"{drafting * 1e3:.2f} ms",
            beside=f"without drafts {plain * 1e3:.2f} ms, {drafting / plain:.2f} times as long; "
            f"{right:.0%} of drafts right",
        )


def ranks(config: dict[str, Any], part: Part) -> None:
    """Compare two ranks, a GPU each, with one: their answers in float32, and a step's time."""
    seen = torch.cuda.device_count()
    if not part.dry and seen < RANKS:
        part.add("two ranks", "not run", beside=f"this machine has {seen} GPU")
        return
    name = config["model_type"]
    answers = [_answers_of_ranks(config, part, count) for count in (1, RANKS)]
    alike = answers[0] == answers[1]
    part.add(f"two ranks, answers: {name}", "alike" if alike else "DIFFERENT", failed=not alike)
    if part.dry:
        return
    for rows in (1, 64):
        seconds = [_step_of_ranks(config, part, count, rows) for count in (1, RANKS)]
        part.add(f"two ranks, {rows} rows, a step: {name}", f"{seconds[1] * 1e3:.2f} ms",
                 beside=f"one rank {seconds[0] * 1e3:.2f} ms")  # fmt: skip


def _answers_of_ranks(config: dict[str, Any], part: Part, count: int) -> list[tuple[int, ...]]:
    with closing(GpuEngine(config, part.device, 8, ranks=count, small=True)) as engine:
        return engine.answers(5, 12)


def _step_of_ranks(config: dict[str, Any], part: Part, count: int, rows: int) -> float:
    with closing(GpuEngine(config, part.device, rows, ranks=count)) as engine:
        return engine.decode_seconds(rows, 32)


def checked_kernels(part: Part) -> None:
    """Check kernels without a GPU: compile them, or interpret tiny ones."""
    if triton.knobs.runtime.interpret:
        for sizes in (TINY, TINY_CHANNELS):
            for case in cases(sizes, Maker(part.device, torch.float32)):
                if sizes is TINY or case.name.startswith("delta"):
                    case.run()
                    part.add(f"{sizes.name} {case.name}", "interpreted")
    else:
        _compile_kernels(part)


def _compile_kernels(part: Part) -> None:
    with compile_for(HOPPER) as compiled:
        for sizes in MODELS:
            for case in cases(sizes, Maker(torch.device("meta"), torch.bfloat16)):
                before = len(compiled)
                case.run()
                for kernel in compiled[before:]:
                    part.add(f"{sizes.name} {case.name}", "fits" if kernel.fits else "DOES NOT FIT",
                             beside=str(kernel), failed=not kernel.fits)  # fmt: skip


def kernels(sizes: Sizes, part: Part) -> None:
    make = Maker(part.device, torch.bfloat16)
    others: dict[str, tuple[str, Callable[[], object]]] = {}
    part.row(f"{sizes.name} peers", lambda: others.update(peers(sizes, make)))
    for case in cases(sizes, make):
        what = f"{sizes.name} {case.name}"
        peer = others.get(case.name)
        part.row(what, partial(_time_kernel, part, what, case, peer), _LEAST_ROW_S)


def _time_kernel(
    part: Part, what: str, case: KernelCase, peer: tuple[str, Callable[[], object]] | None
) -> None:
    seconds = _replayed_seconds(case.run)
    floor = max(case.bytes / part.limits.bandwidth, case.flops / part.limits.arithmetic)
    beside = "" if peer is None else f"{peer[0]} {_peer_seconds(peer[1])}"
    limit = f"{floor * 1e6:.1f} us"
    part.add(what, f"{seconds * 1e6:.1f} us", limit, floor / seconds, beside)


def _replayed_seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call in a CUDA graph: launching takes longer than small kernels."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return _seconds(graph.replay)


def _seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of many calls, with the caches emptied before each."""
    return 1e-3 * float(do_bench(call, warmup=20, rep=60, return_mode="median"))


def _peer_seconds(call: Callable[[], object]) -> str:
    """Time a peer's call in a graph like ours, or without one if it cannot be captured."""
    try:
        return f"{_replayed_seconds(call) * 1e6:.1f} us"
    except Exception as error:  # a peer of another version may raise anything
        uncaptured = type(error).__name__
    try:
        return f"{_seconds(call) * 1e6:.1f} us, with launches ({uncaptured} in a graph)"
    except Exception as error:  # as above
        return f"did not run: {type(error).__name__}"


def tasks(dry: bool) -> list[Task]:
    """Return the parts in order: what the others rest on comes first, and each kernel's row before
    the engines', so that a cold compiler costs the end of the table and not its middle."""
    timed = [Task(f"kernels {sizes.name}", partial(kernels, sizes), 70.0) for sizes in MODELS]
    return [
        Task("limits", limits, 40.0),
        Task("parity", parity, 200.0),
        *([Task("kernels", checked_kernels, BUDGET_S)] if dry else timed),
        *(Task(f"guard {c['model_type']}", partial(guard, c), 60.0) for c in FEW_LAYERS),
        *(Task(f"decode {name}", partial(decode, name), 90.0) for name in ENGINE_MODELS),
        Task("decode with drafts", decode_mtp, 60.0),
        Task("decode long contexts", long_contexts, 60.0),
        Task("ranks", partial(ranks, FEW_LAYERS[0]), 120.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything that only a GPU can show.")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: up to the launch")
    kinds = ("limits", "parity", "guard", "ranks", "decode", "kernels")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, metavar="PART",
                        help=f"some of {', '.join(kinds)}; limits are always measured")  # fmt: skip
    args = parser.parse_args()
    if not args.dry_run and not sees_gpu():
        parser.error("torch sees no GPU; --dry-run checks everything up to the launch without one")
    quicken()
    run = GpuRun(args.dry_run, BUDGET_S)
    try:
        for task in tasks(args.dry_run):
            if task.name.split()[0] in {"limits", *args.only}:
                run.part(task)
    finally:
        print(f"\n{time.strftime('%Y-%m-%d')}  {run.limits.chip}  torch {torch.__version__}  "
              f"triton {triton.__version__}  Python {sys.version.split()[0]}")  # fmt: skip
        print(f"{'':52} {'measured':>12} {'limit':>12} {'share':>6}  beside")
        for line in run.lines:
            print(line)
    return int(run.failed)


def sees_gpu() -> bool:
    """Check for a GPU in another process: a process that has checked cannot be forked."""
    asked = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
