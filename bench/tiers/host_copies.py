"""The rates of copies between two pairs of pools in the memory of one machine."""

import random
import time

import torch
from torch import Tensor

from baton.bench.transfer.pools import LAYER, PAGES
from baton.engine.layout.layout import SlotLayout
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.tiers.block_copier import BlockCopier, Blocks

_SLOTS = SlotLayout((LAYER,) * 33, torch.bfloat16, torch.float32)
PAGES_OF_PREFIX = 64  # of a prefix
_POOL = 4 * PAGES_OF_PREFIX  # pages of a pool, so that those of a prefix lie apart
_DEADLINE_S = 120.0


def measure(seed: int) -> dict[str, float]:
    """Copy one prefix there, back, and as many bytes in one piece, each once; return GB/s and the
    shares of the last. seed: of where its pages lie."""
    rng = random.Random(seed)
    device, host = pools(), pools()
    here, there = (rng.sample(range(_POOL), PAGES_OF_PREFIX) for _ in range(2))
    nbytes = _SLOTS.slot_bytes + PAGES_OF_PREFIX * PAGES.page_bytes
    plain = _Plain(nbytes)
    rates: dict[str, float] = {}
    for name, source, target, pages in (
        ("write", device, host, zip(here, there, strict=True)),
        ("load", host, device, zip(there, here, strict=True)),
    ):
        kinds = [Blocks(*each) for each in zip(source, target, strict=True)]
        copier = BlockCopier(name, kinds, torch.device("cpu"))
        copy = copier.start([(1, 1)], list(pages), lambda: None)
        seconds = copy.done.result(_DEADLINE_S)
        copier.close()
        if seconds is None:
            raise RuntimeError(f"the {name} was stopped, which nobody had asked for")
        rates[f"{name}_gb_s"] = nbytes / seconds / 1e9
        rates[f"{name}_share"] = rates[f"{name}_gb_s"] / (nbytes / plain.seconds() / 1e9)
    rates["copy_gb_s"] = nbytes / plain.seconds() / 1e9
    return rates


def pools() -> tuple[Tensor, Tensor]:
    """Return two slots and a pool of pages, all touched: [blocks, bytes] uint8."""
    return (
        torch.full((2, _SLOTS.slot_bytes), 1, dtype=torch.uint8),
        torch.full((_POOL, PAGES.page_bytes), 1, dtype=torch.uint8),
    )


class _Plain:
    """A copy of one piece of memory by one thread, as the tier's thread copies its pieces."""

    def __init__(self, nbytes: int) -> None:
        source, target = (torch.full((nbytes,), 1, dtype=torch.uint8) for _ in range(2))
        self._source, self._target = HostBytes(source.numpy()), HostBytes(target.numpy())
        self._nbytes = nbytes

    def seconds(self) -> float:
        """Copy it once, and return the time."""
        began = time.perf_counter()
        self._target.put(0, self._source.view(0, self._nbytes))
        return time.perf_counter() - began
