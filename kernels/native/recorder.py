"""Running native operations as they are called, or recording them as a list to run again.

A recorded list is to a CPU what a CUDA graph is to a GPU: bound calls on fixed memory. The code
that is recorded must consist of native operations and views alone; anything else raises.
"""

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from baton.core.errors import BatonError
from baton.kernels.native.arguments import Arguments
from baton.kernels.native.library import Library, Operation
from baton.kernels.native.workspace import Workspace

T = TypeVar("T")

# Values below which an operation that looks at each of them once is small: some 100 microseconds.
SMALL = 1 << 20


class NotRecordableError(BatonError):
    """An operation of recorded code that is not in the native library."""


class Arena:
    """The memory of recorded operations. A tensor that is dropped while recording gives its block
    to the next tensor that fits; the list runs in the same order later."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = defaultdict(list)
        self._blocks: list[bytearray] = []  # those in use, too: lists point into them

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = prod(shape)
        size = 1 << max(12, (count * dtype.itemsize - 1).bit_length())
        if not self._free[size]:
            block = bytearray(size)
            self._blocks.append(block)
            self._free[size].append(block)
        block = self._free[size].pop()
        lease = memoryview(block)  # torch holds it for as long as any view of the tensor lives
        weakref.finalize(lease, self._free[size].append, block).atexit = False
        return torch.frombuffer(lease, dtype=dtype)[:count].view(shape)


class Recording:
    """Operations with their arguments, in order; `run` runs them again on the same memory."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arguments: list[Arguments] = []
        self._operations: ctypes.Array[Operation] = (Operation * 0)()

    def append(self, arguments: Arguments) -> None:
        self._arguments.append(arguments)

    def close(self) -> None:
        bound = [self._library.bind(arguments) for arguments in self._arguments]
        self._operations = (Operation * len(bound))(*bound)

    def run(self) -> None:
        self._library.run(self._operations, len(self._operations))


class Native:
    """The library as the kernels call it. One thread at a time."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._arena = Arena()
        self._workspace = Workspace()
        self._recording: Recording | None = None

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return memory for a result."""
        if self._recording is None:
            return self._workspace.empty(shape, dtype)
        return self._arena.empty(shape, dtype)

    def call(self, operation: str, small: bool = False, /, **values: Tensor | float | None) -> None:
        """Run the operation that is called so, or append it to the recording.

        small: the work is too little to wake other threads for. values: of its arguments, by name;
        see `Arguments`.
        """
        arguments = self.library.arguments(operation, values)
        if self._recording is None:
            self.library.run(self.library.bind(arguments), 1, 1 if small else None)
        else:
            self._recording.append(arguments)

    def record(self, function: Callable[[], T]) -> tuple[Recording, T]:
        """Record the operations of `function`; return them and its result, which each run fills
        anew.

        What it reads besides its own results must stay at its address. Raises NotRecordableError.
        """
        recording = self._recording = Recording(self.library)
        try:
            # In inference mode a reshape is not taken apart into what it does: view, or copy.
            with torch.inference_mode(False), torch.no_grad(), _ViewsAlone():  # type: ignore[no-untyped-call]
                result = function()
        finally:
            self._recording = None
        recording.close()
        return recording, result


# Operators that look at memory without touching it.
_VIEWS = {
    "_unsafe_view", "alias", "as_strided", "detach", "expand", "narrow", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip


class _ViewsAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch that the method below is never compiled. If torch has to find that out itself,
        the first call imports torch._dynamo, which holds the interpreter lock for seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            raise NotRecordableError(f"aten.{name} is not a native operation")
        return func(*args, **(kwargs or {}))
