"""Parts of a model that tensor-parallel ranks run side by side, in threads or in processes."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from step_driver import StepDriver
from torch import Tensor

from baton.engine.assembly.loader import ready_model
from baton.engine.collectives.comm import Comm, Shard, SingleComm
from baton.engine.collectives.shared_comm import SharedComm
from baton.engine.collectives.shared_memory import SharedMemory
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.base import Kernels
from baton.kernels.kernel_choice import KernelChoice

CHUNK = 20  # prompt tokens a step


class RankComms(Protocol):
    """The collectives of ranks that are threads of one process."""

    def of(self, rank: int) -> Comm: ...

    def abort(self) -> None:
        """End the others' waits: this rank has failed."""
        ...


class RankThreads:
    """Collectives in torch."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=60)
        self._parts: list[Tensor | None] = [None] * size

    def of(self, rank: int) -> Comm:
        return _RankThread(self, rank)

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        """Return what all ranks gave, in their order."""
        self._parts[rank] = x
        self._barrier.wait()
        found = [part for part in self._parts if part is not None]
        self._barrier.wait()
        return found

    def abort(self) -> None:
        """End the others' waits: this rank has failed."""
        self._barrier.abort()


class SharedThreads:
    """Native collectives, over memory as processes share it."""

    def __init__(self, size: int) -> None:
        descriptor = SharedMemory.create(size)
        self._memories = [
            SharedMemory(descriptor, Shard(rank, size), 0, 60.0) for rank in range(size)
        ]
        os.close(descriptor)

    def of(self, rank: int) -> Comm:
        return _OnNative(self._memories[rank])

    def abort(self) -> None:
        self._memories[0].end()


class _OnNative(SingleComm):
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def on(self, kernels: Kernels) -> Comm:
        assert kernels.native is not None
        return SharedComm(kernels.native, self._memory)


class _RankThread:
    def __init__(self, threads: RankThreads, rank: int) -> None:
        self._threads, self._rank = threads, rank

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._threads.exchange(self._rank, x)).sum(dim=0)

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        parts = self._threads.exchange(self._rank, x)
        assert [part.shape[1] for part in parts] == list(widths)
        return x if self._rank else torch.cat(parts, dim=1)

    def on(self, kernels: Kernels) -> Comm:
        return self

    def check(self) -> None:
        """Do nothing: a failed thread breaks the barrier."""


def say(
    folder: Path,
    prompt: Sequence[int],
    answer: Sequence[int],
    shard: Shard,
    comm: Comm,
    kernels: KernelChoice = KernelChoice.TORCH,
    dtype: torch.dtype = torch.float32,
    form: WeightFormat = WeightFormat.AUTO,
    **more: Any,
) -> Tensor:
    """One rank's logits of every token of `prompt` and `answer`: [tokens, vocab] float32 on rank 0;
    what others return is not looked at. The prompt is read by chunks, the answer token by token."""
    config = read_config(folder, dtype, torch.float32)
    options = EngineConfig(folder, dtype=dtype, weight_format=form, kernels=kernels, **more)
    model = ready_model(config, Checkpoint(folder, dtype=dtype), options, shard, comm)
    driver = StepDriver(model)
    row = driver.start(prompt)
    logits = [driver.prefill(row, chunk=CHUNK).clone()]
    for token in answer:
        row.tokens.append(token)
        logits += [step.clone() for step in driver.step(decode=[row])]
    return torch.cat(logits)


def say_together(
    folder: Path,
    prompt: Sequence[int],
    answer: Sequence[int],
    size: int,
    kernels: KernelChoice = KernelChoice.TORCH,
    dtype: torch.dtype = torch.float32,
    form: WeightFormat = WeightFormat.AUTO,
    **more: Any,
) -> Tensor:
    """The logits that `size` ranks compute together, a thread each; see `say`."""
    native = kernels is not KernelChoice.TORCH
    threads: RankComms = SharedThreads(size) if native else RankThreads(size)
    found: dict[int, Tensor | BaseException] = {}

    def run(rank: int) -> None:
        try:
            shard, comm = Shard(rank, size), threads.of(rank)
            found[rank] = say(folder, prompt, answer, shard, comm, kernels, dtype, form, **more)
        except BaseException as error:  # raised below, in the test's thread
            found[rank] = error
            threads.abort()

    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [error for error in found.values() if isinstance(error, BaseException)]
    for error in sorted(failed, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    logits = found[0]
    assert isinstance(logits, Tensor)
    return logits
