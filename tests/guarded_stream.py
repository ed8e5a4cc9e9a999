"""A stream of forwards whose work runs inside guards, on the device that it is for."""

from collections.abc import Callable
from typing import TypeVar

import torch

from baton.engine.stream.forward_stream import (
    Around,
    CudaStream,
    ForwardStream,
    Pending,
    ThreadStream,
)

T = TypeVar("T")


class _GuardedCudaStream(CudaStream):
    """A CUDA stream that enters a context around all that is enqueued."""

    def __init__(self, device: torch.device, around: Around) -> None:
        super().__init__(device)
        self._around = around

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        def guarded() -> T:
            with self._around():
                return work()

        return super().submit(guarded)


def guarded_stream(device: torch.device, around: Around) -> ForwardStream:
    """The engine's stream for `device`. A thread's would not do for a GPU: its results are there
    when work is enqueued, before the device has written them."""
    if device.type == "cuda":
        return _GuardedCudaStream(device, around)
    return ThreadStream(around, preparing=around)
