"""Plans that are computed from host integers once a batch, and that need some of them on the
device.

A plan is made before the batch's one copy to the device and built after it, from views of that
copy; so no kernel's index costs a copy of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class HostPlan(Generic[T]):
    """A plan whose integer lists go to the device before its result is built.

    lists: what goes to the device, each as an int64 tensor of its own
    build: the result, from these tensors; takes as many as there are lists from the iterator
    """

    lists: tuple[Sequence[int], ...]
    build: Callable[[Iterator[Tensor]], T]

    def on(self, device: torch.device) -> T:
        """Build the result with a copy of its own, for a plan that stands alone.

        The copy to a GPU is from pinned memory: any other would wait for the GPU's stream.
        """
        flat = torch.tensor([value for values in self.lists for value in values], dtype=torch.int64)
        lengths = [len(values) for values in self.lists]
        if device.type == "cuda":
            flat = flat.pin_memory()
        return self.build(iter(torch.split(flat.to(device, non_blocking=True), lengths)))
