"""Taking and freeing state slots: ours, compared with SGLang's allocator loaded from its file."""

import importlib.util
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Protocol

from torch import Tensor

from baton.engine.layout.owners import Owner
from baton.engine.memory.id_pool import IdPool

SLOTS = 256
GROUP = 8  # requests of one admission pass
SLICES = 15
TURNS = 400  # a slice


class SglangAllocator(Protocol):
    """The timed part of SGLang's `MambaSlotAllocator`; its slots are int64 tensors [n]."""

    def alloc(self, need_size: int) -> Tensor | None: ...

    def free(self, free_index: Tensor) -> None: ...

    def alloc_group_begin(self, num_reqs: int) -> None: ...

    def alloc_group_end(self) -> None: ...


def load_sglang(path: Path) -> SglangAllocator:
    """Load the allocator in `path` (sglang/srt/mem_cache/allocator/mamba.py) with SLOTS slots.

    The file needs torch alone. Raises what its import raises.
    """
    spec = importlib.util.spec_from_file_location("sglang_mamba_allocator", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    allocator: SglangAllocator = module.MambaSlotAllocator(SLOTS, "cpu")
    return allocator


def measure(sglang: SglangAllocator | None) -> tuple[dict[str, float], dict[str, float]]:
    """Measure ours and SGLang's in alternating slices.

    Microseconds of CPU time a slot that is taken and freed, alone and in a group of GROUP; for ours
    also with the fence of overlap.
    """
    pool = IdPool(SLOTS + 1, "slot")
    starts = count(1, TURNS)
    ours: dict[str, Callable[[], float]] = {
        "slot_alloc_free_us": lambda: _alone(pool),
        "slot_group_us": lambda: _grouped(pool),
        "slot_fenced_us": lambda: _fenced(pool, next(starts)),
    }
    theirs: dict[str, Callable[[], float]] = {}
    if sglang is not None:
        theirs["slot_alloc_free_us"] = lambda: _sglang_alone(sglang)
        theirs["slot_group_us"] = lambda: _sglang_grouped(sglang)
    slices: dict[tuple[bool, str], list[float]] = {}
    for _ in range(SLICES):
        for mine, timed in ((True, ours), (False, theirs)):
            for key, run in timed.items():
                slices.setdefault((mine, key), []).append(run())
    pool.check()
    middle = {key: median(times) * 1e6 for key, times in slices.items()}
    return (
        {key: middle[True, key] for key in ours},
        {key: middle[False, key] for key in theirs},
    )


def _alone(pool: IdPool) -> float:
    live = Owner.LIVE
    began = time.thread_time()
    for _ in range(TURNS):
        slot = pool.take(live)
        if slot is not None:
            pool.free(slot, live)
    return (time.thread_time() - began) / TURNS


def _grouped(pool: IdPool) -> float:
    live = Owner.LIVE
    began = time.thread_time()
    for _ in range(TURNS // GROUP):
        with pool.group(GROUP):
            slots = [pool.take(live) for _ in range(GROUP)]
        for slot in slots:
            if slot is not None:
                pool.free(slot, live)
    return (time.thread_time() - began) / TURNS


def _fenced(pool: IdPool, first: int) -> float:
    """Free a slot while a forward runs, which then completes: the worst case, once a slot.

    first: a sequence number above all that were used before.
    """
    live = Owner.LIVE
    began = time.thread_time()
    for sequence in range(first, first + TURNS):
        slot = pool.take(live)
        if slot is not None:
            pool.free(slot, live, sequence)
        pool.complete(sequence)
    return (time.thread_time() - began) / TURNS


def _sglang_alone(allocator: SglangAllocator) -> float:
    began = time.thread_time()
    for _ in range(TURNS):
        slot = allocator.alloc(1)
        if slot is not None:
            allocator.free(slot)
    return (time.thread_time() - began) / TURNS


def _sglang_grouped(allocator: SglangAllocator) -> float:
    began = time.thread_time()
    for _ in range(TURNS // GROUP):
        allocator.alloc_group_begin(GROUP)
        slots = [allocator.alloc(1) for _ in range(GROUP)]
        allocator.alloc_group_end()
        for slot in slots:
            if slot is not None:
                allocator.free(slot)
    return (time.thread_time() - began) / TURNS
