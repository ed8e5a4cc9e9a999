"""Many small host lists, one copy to the device."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.kernels.host_plan import HostPlan

T = TypeVar("T")


class HostPack:
    """Named fields of 64-bit numbers, end to end in one buffer."""

    def __init__(self) -> None:
        self._buffer = array("q")
        self._fields: dict[str, slice] = {}
        self._lengths: dict[str, int] = {}  # of fields of int32

    def ints(self, name: str, values: Iterable[int]) -> None:
        """Add a field of int64. values: an array of any integers, or other integers."""
        start = len(self._buffer)
        if isinstance(values, np.ndarray):
            self._buffer.frombytes(values.astype(np.int64).tobytes())
        else:
            self._buffer.extend(values)
        self._fields[name] = slice(start, len(self._buffer))

    def masks(self, name: str, masks: Iterable["array[int]"]) -> None:
        """Add a field of int64 from arrays of such, without making a Python number of each."""
        start = len(self._buffer)
        for mask in masks:
            self._buffer.extend(mask)
        self._fields[name] = slice(start, len(self._buffer))

    def same(self, name: str, other: str) -> None:
        """Let field `name` be field `other`, which is there already."""
        self._fields[name] = self._fields[other]

    def floats(self, name: str, values: npt.ArrayLike) -> None:
        """Add a field of float64; its bits travel among the integers."""
        start = len(self._buffer)
        self._buffer.frombytes(np.asarray(values, np.float64).tobytes())
        self._fields[name] = slice(start, len(self._buffer))

    def int32s(self, name: str, values: bytes) -> None:
        """Add a field of int32, given as their bytes."""
        start = len(self._buffer)
        self._buffer.frombytes(values + bytes(-len(values) % 8))
        self._fields[name] = slice(start, len(self._buffer))
        self._lengths[name] = len(values) // 4

    def plan(self, plan: HostPlan[T]) -> Callable[["DevicePack"], T]:
        """Add all lists of `plan`. Returns the function that builds it from the device's copy."""
        start = len(self._buffer)
        for values in plan.lists:
            self._buffer.extend(values)
        whole = slice(start, len(self._buffer))
        lengths = [len(values) for values in plan.lists]
        return lambda packed: plan.build(packed.parts(whole, lengths))

    def ship(self, device: torch.device) -> "DevicePack":
        """Copy the buffer to the device at once; to a GPU from pinned memory, without waiting for
        it.
        """
        if self._buffer:
            host = torch.frombuffer(self._buffer, dtype=torch.int64)
        else:  # which frombuffer refuses
            host = torch.empty(0, dtype=torch.int64)
        if device.type == "cpu":
            return DevicePack(host, self._fields, self._lengths)
        packed = host.pin_memory().to(device, non_blocking=True)
        return DevicePack(packed, self._fields, self._lengths)


class DevicePack:
    """The fields of a HostPack on the device: views of one int64 tensor."""

    def __init__(self, packed: Tensor, fields: dict[str, slice], lengths: dict[str, int]) -> None:
        self._packed = packed
        self._fields = fields
        self._lengths = lengths

    def parts(self, whole: slice, lengths: list[int]) -> Iterator[Tensor]:
        """Yield a tensor [n] int64 for each n of `lengths`."""
        return iter(torch.split(self._packed[whole], lengths))

    def empty(self, length: int) -> Tensor:
        """Return [length] int64 beside the copy, not filled in."""
        return torch.empty(length, dtype=torch.int64, device=self._packed.device)

    def ints(self, name: str) -> Tensor:
        """Return a field as [n] int64."""
        return self._packed[self._fields[name]]

    def int32s(self, name: str) -> Tensor:
        """Return a field as [n] int32."""
        return self.ints(name).view(torch.int32)[: self._lengths[name]]

    def floats(self, name: str) -> Tensor:
        """Return a field as [n] float32."""
        return self.ints(name).view(torch.float64).float()
