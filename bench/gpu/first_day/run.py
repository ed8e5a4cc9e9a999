"""The scripts for the first day with a GPU, each in a process of its own, with a limit.

    PYTHONPATH=.types:examples python -m baton.bench.gpu.first_day

Each prints the lines of what it has looked at, one line with its verdict, and one JSON object.
--only runs some of them. --dry-run needs no GPU: kernels are interpreted at tiny sizes where
TRITON_INTERPRET=1 is set, and engines run small models on the CPU.
"""

import argparse
import importlib
import json
from dataclasses import asdict, replace
from functools import partial

from baton.bench.gpu.first_day.capture import capture
from baton.bench.gpu.first_day.cluster import cluster
from baton.bench.gpu.first_day.compile_stalls import compile_stalls
from baton.bench.gpu.first_day.device_transfer import device_transfer
from baton.bench.gpu.first_day.errors import errors
from baton.bench.gpu.first_day.fences import fences
from baton.bench.gpu.first_day.host_tier import host_tier
from baton.bench.gpu.first_day.loading import loading
from baton.bench.gpu.first_day.memory import memory
from baton.bench.gpu.first_day.real_parity import real_parity
from baton.bench.gpu.first_day.same_tokens import mtp_and_fp8, same_tokens
from baton.bench.gpu.first_day.waits import waits, waits_mtp
from baton.bench.gpu.interpreter import quicken
from baton.bench.gpu.models import FEW_LAYERS, MTP_LAYERS
from baton.bench.gpu.parts import GpuRun, Line, Task
from baton.bench.gpu.run import sees_gpu

SCRIPTS = (
    Task("same_tokens", same_tokens, 120.0),
    Task("mtp_and_fp8", mtp_and_fp8, 60.0),
    Task("real_parity", real_parity, 230.0),
    Task("cluster", cluster, 150.0),
    Task("compile_stalls", compile_stalls, 300.0),
    *(Task(f"waits {c['model_type']}", partial(waits, c), 20.0) for c in FEW_LAYERS),
    *(Task(f"waits {c['model_type']} MTP", partial(waits_mtp, c), 25.0) for c in MTP_LAYERS),
    Task("memory", memory, 60.0),
    Task("host_tier", host_tier, 60.0),
    Task("fences", fences, 120.0),
    Task("errors", errors, 90.0),
    Task("capture", capture, 120.0),
    Task("device_transfer", device_transfer, 130.0),
    Task("loading", loading, 60.0),
)
"""The scripts in their order: `waits` finds kernels that `compile_stalls` has compiled."""

_DRY_S = 300.0  # of each in a dry run, whose machine may be busy with anything


def run_script(run: GpuRun, task: Task) -> None:
    """Run one script, and print its verdict and its JSON object."""
    before = len(run.lines)
    run.part(task)
    lines = run.lines[before:]
    print(verdict(task.name, lines))
    found = {
        "script": task.name,
        "failed": any(line.failed for line in lines),
        "lines": [asdict(line) for line in lines],
    }
    print(json.dumps(found), flush=True)


def verdict(name: str, lines: list[Line]) -> str:
    """Return one line: whether a script has found a fault, and the first."""
    failed = [line for line in lines if line.failed]
    if not failed:
        return f"{name}: ok, {len(lines)} lines"
    first = failed[0]
    return f"{name}: {len(failed)} of {len(lines)} lines FAILED, first {first.what}: {first.value}"


def main() -> int:
    parser = argparse.ArgumentParser(description="What to run on the first day with a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU")
    names = list(dict.fromkeys(task.name.split()[0] for task in SCRIPTS))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SCRIPT",
                        help=f"some of {', '.join(names)}")  # fmt: skip
    args = parser.parse_args()
    if not args.dry_run and not sees_gpu():
        parser.error("torch sees no GPU; --dry-run checks what can be checked without one")
    scripts = [replace(task, most_s=_DRY_S) for task in SCRIPTS] if args.dry_run else SCRIPTS
    quicken()
    importlib.import_module("torch._inductor")  # torch's profiler would, in each process
    run = GpuRun(args.dry_run, sum(task.most_s for task in scripts))
    for task in scripts:
        if task.name.split()[0] in args.only:
            run_script(run, task)
    return int(run.failed)
