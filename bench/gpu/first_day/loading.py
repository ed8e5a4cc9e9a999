"""The loading of a checkpoint into a GPU's memory: bytes a second, and the host's memory.

The files lie in shared memory, so that no disk is measured, and then on the disk of temporary
files, whose pages are in memory as well: they were just written.
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
from baton.bench.gpu.parts import Part
from baton.bench.loading.loading import make_checkpoint
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

_GB, _DRY_GB = 4.0, 0.05
_SHARD_MB = 1024


def loading(part: Part) -> None:
    """Load from each folder twice, a line each."""
    for parent in (Path("/dev/shm"), None):
        where = "shared memory" if parent else "temporary files"
        part.row(where, partial(_load_from, parent, where, part))


def _load_from(parent: Path | None, where: str, part: Part) -> None:
    seed = random.Random(0).randrange(2**31)
    with TemporaryDirectory(dir=parent) as folder:
        model, gigabytes = Path(folder) / "model", _DRY_GB if part.dry else _GB
        files = make_checkpoint(model, gigabytes, _SHARD_MB, "bfloat16", seed)
        size = sum(file.stat().st_size for file in files)
        options = EngineConfig(
            model=model,
            dtype=torch.bfloat16,
            device=str(part.device),
            max_running=2,
            max_model_len=256,
            memory_bytes=size + (2 << 30),
            graphs=False,
        )
        for which in ("first", "again"):
            seconds, whole = _seconds(options)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            part.add(
                f"{where}, {which}",
                f"{size / seconds / 1e9:.2f} GB/s",
                beside=f"{size / 1e9:.2f} GB of weights in {seconds:.1f} s, the engine in "
                f"{whole:.1f} s, {peak / 1e9:.2f} GB of host memory",
            )
            return_memory(part.device)


def _seconds(options: EngineConfig) -> tuple[float, float]:
    """Return the seconds until the last weight was there, and those until the engine was ready."""
    told = began = time.perf_counter()

    def heard(what: str, fraction: float) -> None:
        nonlocal told
        if what == "weights":
            told = time.perf_counter()

    with closing(Engine.load(options, heard)):
        return told - began, time.perf_counter() - began
