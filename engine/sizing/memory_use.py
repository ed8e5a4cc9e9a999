"""The memory of a GPU that a started engine uses, beside what was planned."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from baton.core.errors import ConfigError
from baton.engine.layout.device import device_of
from baton.engine.settings.choices import GPU_MEMORY_FRACTION
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.readable import readable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a GPU, after an engine has captured its steps and computed the largest."""

    peak: int  # that tensors took at once, at most
    reserved: int  # that torch holds for tensors
    on_card: int  # in use by all processes

    @property
    def beside(self) -> int:
        """Bytes that are no tensor's: of CUDA and libraries, and of other processes."""
        return max(0, self.on_card - self.reserved)


@contextmanager
def naming_what_is_full(config: EngineConfig) -> Iterator[None]:
    """Raise ConfigError, with what would help, where a GPU's memory ends while an engine starts."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        device = device_of(config.device)
        free, total = torch.cuda.mem_get_info(device)
        beside = max(0, total - free - torch.cuda.memory_reserved(device))
        raise ConfigError(
            f"the memory of {device} was full before the engine had started: it has "
            f"{readable(total)}, of which other processes and libraries use {readable(beside)} "
            "(`nvidia-smi` lists processes). What would help: a smaller --memory-fraction (now "
            f"{config.fraction:g}), --max-running (now {config.most_running}) or "
            f"--chunked-prefill-size, or --no-graphs. The device said: {error}"
        ) from error


def memory_use(device: torch.device) -> MemoryUse | None:
    """Measure this process's GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    peak = torch.cuda.max_memory_allocated(device)
    return MemoryUse(peak, torch.cuda.memory_reserved(device), total - free)


def compared(plan: MemoryPlan, use: MemoryUse) -> dict[str, str]:
    """Describe what is used and what was planned for it, and log it; warn of what is more.

    Where the engine leaves a part of its card to others, their memory cannot be told from what
    libraries take of it, and is no reason to warn.
    """
    overhead = plan.overhead(plan.max_running)
    planned = plan.tensor_bytes + overhead.workspaces
    told = {
        "used by tensors": f"up to {readable(use.peak)} of {readable(planned)} planned",
        "held by torch": readable(use.reserved),
        "used beside torch": f"{readable(use.beside)} of {readable(overhead.beside)} planned",
    }
    alone = plan.config.fraction >= GPU_MEMORY_FRACTION
    over = use.peak > planned or (alone and use.beside > overhead.beside)
    log.log(
        logging.WARNING if over else logging.INFO,
        "memory of %s at the start: %s",
        plan.config.device,
        "; ".join(f"{name} {text}" for name, text in told.items()),
    )
    return told
