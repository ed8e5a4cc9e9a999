"""One safetensors file, mapped into memory.

The format: 8 bytes with the header's length (little endian), a JSON header that gives each
tensor's dtype, shape and byte range, then the tensors' bytes. It is read here rather than by the
safetensors library for two things: a tensor that is used as it lies on disk stays mapped, so that
every worker of a host shares one page cache; and the pages of one that was copied can be let go
(`release`), so that loading never holds a tensor twice.
"""

import json
import mmap
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baton.core.errors import WeightsError
from baton.engine.loading.weight_part import WHOLE, WeightPart

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""The dtypes that are read, by their names in files."""
# Bytes that are requested from the disk at once, and how far ahead of their use.
_BLOCK = 8 << 20
_READ_AHEAD = 64 << 20


@dataclass(frozen=True)
class Entry:
    """The place of one tensor: bytes `start` to `end` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class WeightFile:
    """The tensors of one file. Raises WeightsError where the file is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._asked_for: set[int] = set()  # blocks
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                if size < 8:
                    raise WeightsError(
                        f"{path} is cut short: it has {size} bytes, and a safetensors file begins "
                        "with 8 that give its header's length; copy or download it again"
                    )
                # A private mapping: torch needs writable memory, and no write may reach the file.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise WeightsError(f"cannot read {path}: {error.strerror}") from error
        data_start = 8 + int.from_bytes(self._map[:8], "little")
        if data_start > size:
            raise WeightsError(
                f"{path} is cut short or not a safetensors file: its header should end at byte "
                f"{data_start}, and the file has {size}; copy or download it again"
            )
        self.entries = self._entries(self._map[8:data_start], data_start)
        end = max((entry.end for entry in self.entries.values()), default=data_start)
        if end > size:
            raise WeightsError(
                f"{path} is cut short: its tensors take {end} bytes and it has {size}; "
                "copy or download it again"
            )

    def tensor(self, name: str, part: WeightPart = WHOLE) -> Tensor:
        """Return `part` of tensor `name` as it lies in the file: mapped where it is one run of
        places, in the file's dtype, on the CPU. Do not write.

        Its bytes are read now, so that the first step does not wait for the disk. Pages of the file
        that hold nothing of it are not.
        """
        entry = self.entries[name]
        if entry.nbytes == 0:
            return part.of(torch.empty(entry.shape, dtype=entry.dtype))
        if part.spans:
            whole = self._mapped(entry)
            views = part.views(whole)
            for view in views:
                if view.is_contiguous():
                    first = entry.start + view.data_ptr() - whole.data_ptr()
                    self._read(first, first + view.nbytes, ahead=0)
            return views[0] if len(views) == 1 else torch.cat(views, part.dim)
        self._read(entry.start, entry.end, _READ_AHEAD)
        return self._mapped(entry)

    def _mapped(self, entry: Entry) -> Tensor:
        flat = torch.frombuffer(
            self._map,
            dtype=entry.dtype,
            offset=entry.start,
            count=entry.nbytes // entry.dtype.itemsize,
        )
        return flat.view(entry.shape)

    def release(self, name: str) -> None:
        """Free the memory that holds `name`'s pages. Reading it again reads the disk."""
        entry = self.entries[name]
        first = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.end - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def _read(self, begin: int, end: int, ahead: int) -> None:
        """Bring the pages of bytes `begin` to `end` into memory, while the disk goes on with the
        `ahead` bytes behind them.
        """
        last = min(len(self._map), end + ahead)
        for block in range(begin // _BLOCK, -(-last // _BLOCK)):
            if block not in self._asked_for:
                self._asked_for.add(block)
                start = block * _BLOCK
                length = min(_BLOCK, len(self._map) - start)
                self._map.madvise(mmap.MADV_WILLNEED, start, length)
        pages = torch.frombuffer(self._map, dtype=torch.uint8, offset=begin, count=end - begin)
        pages[:: mmap.PAGESIZE].amax()

    def _entries(self, header: bytes, data_start: int) -> dict[str, Entry]:
        try:
            fields = json.loads(header, object_pairs_hook=self._unique)
            return {
                name: self._entry(name, value, data_start)
                for name, value in fields.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(
                f"{self.path} is not a safetensors file: its header is not the JSON table of "
                f"tensors that it should be ({error})"
            ) from error

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return a table of the header. Raises WeightsError for a name that comes twice."""
        table = dict(pairs)
        if len(table) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = ", ".join(name for name, count in counts.items() if count > 1)
            raise WeightsError(
                f"{self.path}: the header names more than once: {twice}. Each tensor has one "
                "place: write the file anew"
            )
        return table

    def _entry(self, name: str, value: dict[str, Any], data_start: int) -> Entry:
        if value["dtype"] not in DTYPES:
            raise WeightsError(
                f"{self.path}: tensor {name} has dtype {value['dtype']}; "
                f"supported are {', '.join(DTYPES)}"
            )
        first, last = value["data_offsets"]
        entry = Entry(
            DTYPES[value["dtype"]], tuple(value["shape"]), data_start + first, data_start + last
        )
        if entry.nbytes != prod(entry.shape) * entry.dtype.itemsize or first < 0:
            raise WeightsError(
                f"{self.path}: tensor {name} of shape {list(entry.shape)} and dtype "
                f"{value['dtype']} cannot lie in bytes {first} to {last}; the header is damaged"
            )
        return entry
