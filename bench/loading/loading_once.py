"""One load in a process of its own, for `baton bench load`: prints seconds and memory as JSON."""

import argparse
import json
import time
from pathlib import Path

import torch

from baton.engine.assembly.loader import load_model
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig

_STATUS = Path("/proc/self/status")
_PEAK, _NOW = "VmHWM", "VmRSS"


def memory(field: str) -> int:
    """Return bytes of this process by a field of /proc; mapped pages that it has read count too."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(folder: Path, dtype: torch.dtype, weight_format: WeightFormat) -> dict[str, float]:
    """Measure loading every weight into memory. Torch's own memory is excluded."""
    torch.ones(256, 256) @ torch.ones(256, 256)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
    before = memory(_NOW)
    began = time.perf_counter()
    model = load_model(EngineConfig(model=folder, dtype=dtype, weight_format=weight_format))
    seconds = time.perf_counter() - began
    grown = memory(_PEAK) - before
    return {"seconds": seconds, "grown": grown, "weights": model.weight_bytes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("dtype")
    parser.add_argument("weight_format", type=WeightFormat)
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    print(json.dumps(measure(given.folder, dtype, given.weight_format)))
