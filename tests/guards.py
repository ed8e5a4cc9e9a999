"""A guard that fails where device results are read on the host, or shapes depend on them.

On a GPU such a read stops the launch queue; a CPU would hide it, so tests run the forward path
under this guard. Modes of torch are per thread: enter it on the thread that computes.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {"item", "tolist", "cpu", "numpy", "nonzero", "argwhere", "__bool__", "__int__"}
_READS |= {"__float__", "__index__", "__array__", "__contains__", "masked_select"}
_READS |= {"unique", "allclose"}
_OPERATORS = {
    "_local_scalar_dense",
    "argwhere",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique",
    "_unique2",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class HostReadError(AssertionError):
    """The guarded code read device data on the host."""


class HostUploads(TorchFunctionMode):
    """Counts the tensors that are made of host lists; each would be a copy to the device.

    torch.frombuffer, by which a step's pack becomes a tensor, does not pass here.
    """

    _MADE = frozenset({"tensor", "as_tensor", "from_numpy", "asarray"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.count += func.__name__ in self._MADE
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Sees the methods that never reach the dispatcher for a CPU tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.__name__
        if name in _READS:
            raise HostReadError(f"Tensor.{name} inside the guarded path reads the device")
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    """Sees the operators, those called inside other operators too."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _OPERATORS:
            raise HostReadError(f"aten.{name} inside the guarded path reads the device")
        if name in _INDEXING and any(_is_mask(index) for index in args[1]):
            raise HostReadError(f"aten.{name} with a boolean mask has a shape that only data knows")
        if name.startswith("repeat_interleave") and (kwargs or {}).get("output_size") is None:
            raise HostReadError("repeat_interleave without output_size reads its repeats")
        return func(*args, **(kwargs or {}))


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


class NoHostReads:
    """`with NoHostReads(): forward()` raises HostReadError at the first read."""

    def __init__(self) -> None:
        self._modes = (_Functions(), _Dispatch())

    def __enter__(self) -> None:
        for mode in self._modes:
            mode.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)
