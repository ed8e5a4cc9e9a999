"""`baton bench load`: a sharded checkpoint, from files to a model that is ready to run."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import torch

from baton.bench.checkpoints import HYBRID_191M, write_checkpoint
from baton.bench.contract import Report, json_option, repeats_option, seed_option, show, summarise
from baton.engine.settings.choices import WeightFormat

_CHUNK = 8 << 20  # of a plain read
_GROUP = ["mamba"] * 5 + ["attention"]
_LAYER_VALUES = 7_250_000  # of one of these layers
_DTYPES = ("float32", "bfloat16")
_DEADLINE_S = 600.0


@click.command("load")
@click.option("--gb", type=click.FloatRange(0.02), default=1.0, show_default=True,
              help="Size of the checkpoint, which is written to a temporary folder.")  # fmt: skip
@click.option("--shard-mb", type=click.IntRange(1), default=256, show_default=True)
@click.option("--dtype", type=click.Choice(_DTYPES), default="bfloat16", show_default=True)
@click.option("--weight-format", type=click.Choice(list(WeightFormat)),
              default=WeightFormat.MODEL, show_default=True)  # fmt: skip
@repeats_option
@seed_option
@json_option
def load(
    gb: float,
    shard_mb: int,
    dtype: str,
    weight_format: WeightFormat,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Load a checkpoint in a process of its own: once from the disk, once from the page cache.

    gb_s: bytes over the seconds from a folder to a model with all weights in memory, when the page
    cache holds none of them; gb_s_cached: when it holds all. The limits read the same files from
    end to end. peak_memory_ratio: the process's largest growth, with its part of the page cache,
    over the bytes of the loaded weights.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="baton-bench-load-") as temporary:
        files = make_checkpoint(Path(temporary) / "model", gb, shard_mb, dtype, seed)
        size = sum(file.stat().st_size for file in files)
        rounds = [measure(files, dtype, weight_format) for _ in range(repeats)]
    config = {
        "bytes": size, "files": len(files), "dtype": dtype, "weight_format": str(weight_format),
        "repeats": repeats, "seed": seed,
    }  # fmt: skip
    results, limits = (summarise([each[part] for each in rounds]) for part in (0, 1))
    show(Report("load", config, results, limits), json_wanted)


def make_checkpoint(folder: Path, gb: float, shard_mb: int, dtype: str, seed: int) -> list[Path]:
    """Write a hybrid with as many layers as make about `gb` GB; return its weight files."""
    layer_bytes = _LAYER_VALUES * getattr(torch, dtype).itemsize
    groups = max(1, round(gb * 1e9 / layer_bytes / len(_GROUP)))
    config: dict[str, Any] = {
        **HYBRID_191M,
        "vocab_size": 4096,
        "layer_types": _GROUP * groups,
        "num_hidden_layers": len(_GROUP) * groups,
    }
    write_checkpoint(folder, config, getattr(torch, dtype), seed, shard_mb << 20)
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return files


def measure(
    files: list[Path], dtype: str, weight_format: WeightFormat
) -> tuple[dict[str, float], dict[str, float]]:
    """Return one round of results and limits; each load is next to its limit."""
    folder, size = files[0].parent, sum(file.stat().st_size for file in files)
    _forget(files)
    disk = size / _read(files) / 1e9
    _forget(files)
    cold = _loaded(folder, dtype, weight_format)
    warm = _loaded(folder, dtype, weight_format)
    cached = size / _read(files) / 1e9
    results = {
        "gb_s": size / cold["seconds"] / 1e9,
        "gb_s_cached": size / warm["seconds"] / 1e9,
        "peak_memory_ratio": max(each["grown"] / each["weights"] for each in (cold, warm)),
    }
    results["disk_share"] = results["gb_s"] / disk
    results["cached_share"] = results["gb_s_cached"] / cached
    return results, {"disk_gb_s": disk, "page_cache_gb_s": cached}


def _forget(files: Iterable[Path]) -> None:
    """Drop the files from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(files: Iterable[Path]) -> float:
    """Return the seconds to read the files from end to end."""
    buffer = bytearray(_CHUNK)
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began


def _loaded(folder: Path, dtype: str, weight_format: WeightFormat) -> dict[str, float]:
    words = [
        sys.executable, "-m", "baton.bench.loading.loading_once", str(folder), dtype, weight_format
    ]  # fmt: skip
    done = subprocess.run(words, check=True, capture_output=True, timeout=_DEADLINE_S)
    found: dict[str, float] = json.loads(done.stdout)
    return found
