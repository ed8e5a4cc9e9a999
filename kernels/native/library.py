"""The native library, loaded, and the lists of operations that it runs."""

import ctypes
import functools
import warnings
from pathlib import Path

import torch
from torch import Tensor

from baton.core.errors import InvariantError
from baton.kernels.native.arguments import Arguments, exported
from baton.kernels.native.build import BuildError, build


class Operation(ctypes.Structure):
    """A function of the library and where its arguments lie."""

    _fields_ = [("run", ctypes.c_void_p), ("arguments", ctypes.c_void_p)]


class Library:
    """The compiled library's functions. It is loaded after torch, so that both share one
    OpenMP runtime, and with it one set of threads."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._arguments = exported(loaded)
        self._run = loaded.baton_run
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._run.restype = None
        self._copy = loaded.baton_copy_past_cache
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._copy.restype = None
        loaded.baton_dots_bf16.restype = ctypes.c_int64
        self.dots_bf16 = bool(loaded.baton_dots_bf16())
        loaded.baton_tiles.restype = ctypes.c_int64
        self.tiles = bool(loaded.baton_tiles())
        loaded.baton_wide_vectors.restype = ctypes.c_int64
        self.wide_vectors = bool(loaded.baton_wide_vectors())

    def arguments(self, operation: str, values: dict[str, Tensor | float | None]) -> Arguments:
        """Return the arguments of the operation that is called so; see `Arguments`."""
        kind = self._arguments.get(operation)
        if kind is None:
            raise InvariantError(f"there is no native operation {operation!r}")
        return kind(**values)

    def bind(self, arguments: Arguments) -> Operation:
        """Return the operation with its arguments, which the caller keeps alive."""
        return Operation(arguments.function, ctypes.addressof(arguments))

    def run(
        self,
        operations: ctypes.Array[Operation] | Operation,
        count: int,
        threads: int | None = None,
    ) -> None:
        """Run operations in order, without the interpreter lock.

        threads: None for torch's number
        """
        self._run(ctypes.addressof(operations), count, threads or torch.get_num_threads())

    def copy_past_cache(self, to: int, source: int, nbytes: int) -> None:
        """Copy between addresses that do not overlap, without the interpreter lock."""
        self._copy(to, source, nbytes)


@functools.cache
def load() -> Library | None:
    """Return the library, built if need be; None, with one warning, if it cannot be built."""
    try:
        return Library(build())
    except (BuildError, OSError) as error:
        warnings.warn(
            f"the native kernels are not available, torch's are used and decode is slower: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
