"""The loading of a checkpoint into a GPU's memory: bytes a second, and the host's memory.

The files lie in shared memory, so that no disk is measured, and then on the disk of temporary
files, whose pages are in memory as well: they were just written. FP8 files are expanded meanwhile.
"""

import random
import resource
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from baton.bench.gpu.device_engine import return_memory
from baton.bench.gpu.first_day.fp8_files import quantise
from baton.bench.gpu.parts import Part
from baton.bench.loading.loading import make_checkpoint
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

_GB, _DRY_GB = 4.0, 0.05
_FP8_GB = 1.0  # as bfloat16, of the checkpoint that is loaded in both forms
_SHARD_MB = 1024
_BLOCK = (128, 128)


def loading(part: Part) -> None:
    """Load from each folder twice, a line each; then a checkpoint in bfloat16 and in FP8."""
    shared = Path("/dev/shm")
    part.row("FP8", partial(_load_both_forms, shared, part))
    for parent in (shared, None):
        where = "shared memory" if parent else "temporary files"
        part.row(where, partial(_load_from, parent, where, part))


def _load_both_forms(parent: Path, part: Part) -> None:
    """Load one checkpoint as it is, and with its matrices in FP8; tell what the device then has."""
    with TemporaryDirectory(dir=parent) as folder:
        model, gigabytes = Path(folder) / "model", _DRY_GB if part.dry else _FP8_GB
        (file,) = make_checkpoint(model, gigabytes, 1 << 20, "bfloat16", seed=0)
        for form in ("bfloat16", "FP8"):
            if form == "FP8":
                quantise(model, _BLOCK)
            seconds, whole, weights = _seconds(_options(model, file.stat().st_size, part))
            part.add(
                f"files in {form}",
                f"{seconds:.2f} s",
                beside=f"{file.stat().st_size / 1e9:.2f} GB in the file, {weights / 1e9:.2f} GB of "
                f"weights, the engine in {whole:.1f} s",
            )
            return_memory(part.device)


def _load_from(parent: Path | None, where: str, part: Part) -> None:
    seed = random.Random(0).randrange(2**31)
    with TemporaryDirectory(dir=parent) as folder:
        model, gigabytes = Path(folder) / "model", _DRY_GB if part.dry else _GB
        files = make_checkpoint(model, gigabytes, _SHARD_MB, "bfloat16", seed)
        size = sum(file.stat().st_size for file in files)
        options = _options(model, size, part)
        for which in ("first", "again"):
            seconds, whole, _ = _seconds(options)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            part.add(
                f"{where}, {which}",
                f"{size / seconds / 1e9:.2f} GB/s",
                beside=f"{size / 1e9:.2f} GB of weights in {seconds:.1f} s, the engine in "
                f"{whole:.1f} s, {peak / 1e9:.2f} GB of host memory",
            )
            return_memory(part.device)


def _options(model: Path, size: int, part: Part) -> EngineConfig:
    """size: bytes of the files, of which FP8 ones are twice as many once they are expanded."""
    return EngineConfig(
        model=model,
        dtype=torch.bfloat16,
        device=str(part.device),
        max_running=2,
        max_model_len=256,
        memory_bytes=2 * size + (2 << 30),
        graphs=False,
    )


def _seconds(options: EngineConfig) -> tuple[float, float, int]:
    """Return the seconds until the last weight was there, those until the engine was ready, and the
    bytes of the weights."""
    told = began = time.perf_counter()

    def heard(what: str, fraction: float) -> None:
        nonlocal told
        if what == "weights":
            told = time.perf_counter()

    with closing(Engine.load(options, heard)) as engine:
        return told - began, time.perf_counter() - began, engine.plan.weight_bytes
