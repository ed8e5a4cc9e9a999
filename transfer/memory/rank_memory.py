"""Access to the memory of an engine with several ranks, for channels."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton.core.state_ref import StateRef
from baton.engine.memory.rank_storage import RankStorages
from baton.transfer.errors import ChecksumError
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.regions import Span, span_of
from baton.transfer.memory.reshard import Place
from baton.transfer.memory.segments import Kind, Segment, nbytes

Bytes = NDArray[np.uint8]


class PoolRows(Protocol):
    """One rank's pool, whose rows of bytes are copied. start, stride: bytes from its beginning."""

    def get(self, start: int, stride: int, move: SegmentMove) -> Bytes:
        """Return the rows of a move: [rows, bytes] uint8. They may alias the pool."""
        ...

    def put(self, start: int, stride: int, move: SegmentMove, rows: Bytes) -> None: ...


class HostRows:
    """A pool in the CPU's memory. A `PoolRows`."""

    def __init__(self, storage: Tensor) -> None:
        self._bytes: Bytes = storage.view(-1).numpy()

    def get(self, start: int, stride: int, move: SegmentMove) -> Bytes:
        return _view(self._bytes, start, stride, move)

    def put(self, start: int, stride: int, move: SegmentMove, rows: Bytes) -> None:
        _view(self._bytes, start, stride, move)[:] = rows


class DeviceRows:
    """A pool in an accelerator's memory. A `PoolRows`: every move passes through host memory."""

    def __init__(self, storage: Tensor) -> None:
        self._bytes = storage.view(-1)

    def get(self, start: int, stride: int, move: SegmentMove) -> Bytes:
        found: Bytes = self._rows(start, stride, move).cpu().numpy()
        return found

    def put(self, start: int, stride: int, move: SegmentMove, rows: Bytes) -> None:
        # A copy: `torch.from_numpy` needs writable memory, which a message is not.
        self._rows(start, stride, move).copy_(torch.from_numpy(rows.copy()))

    def _rows(self, start: int, stride: int, move: SegmentMove) -> Tensor:
        return self._bytes.as_strided((move.rows, move.nbytes), (stride, 1), start)


class RankMemory:
    """The slots and pages of all ranks, which this process maps. A `Memory`: its layouts and the
    bytes of its segments are those of one rank that keeps everything.

    Reading takes each byte from one of the ranks that keep it; writing gives it to all of them.
    """

    def __init__(self, storages: RankStorages) -> None:
        self.slots = storages.slots
        self.pages = storages.pages
        self.ranks = len(storages.ranks)
        self._states = [_pool_rows(rank.states) for rank in storages.ranks]
        self._kv = [_pool_rows(rank.pages) for rank in storages.ranks]
        self._block_bytes = [(s.shape[1], p.shape[1]) for s, p in storages.ranks]
        self._spans = tuple(span_of(pool) for rank in storages.ranks for pool in rank)
        self._out = RankMoves(self.slots, self.pages, self.ranks, 1)
        self._in = RankMoves(self.slots, self.pages, 1, self.ranks)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the spans of the slots and of the pages of each rank, rank after rank."""
        return self._spans

    def read(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return the segment's bytes, copied together."""
        payload = np.empty(nbytes(segment, self.pages), np.uint8)
        for move in self._out.of(segment):
            _rows(payload, move)[:] = self._get(segment, holder, move, move.source)
        return [payload.data]

    def checked(
        self, segment: Segment, holder: StateRef, payload: list[memoryview]
    ) -> list[memoryview]:
        """Return the segment's bytes as each rank keeps them by its own layout, not by the plan
        that `payload` was read by: they differ where that took a part from a wrong place. Of a part
        that several ranks keep, any one's is right."""
        (read,) = payload
        given, kept = np.frombuffer(read, np.uint8), np.empty(len(read), np.uint8)
        confirmed: set[int] = set()  # parts, by their places in the segment's bytes
        for move in self._in.of(segment):
            if move.at in confirmed:
                continue
            here = self._get(segment, holder, move, move.destination)
            if np.array_equal(here, _rows(given, move)):
                confirmed.add(move.at)
            _rows(kept, move)[:] = here
        return [kept.data]

    def written(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return what `read` does. Raises ChecksumError where ranks that keep the same part have
        different bytes of it."""
        (found,) = self.read(segment, holder)
        payload = np.frombuffer(found, np.uint8)
        for move in self._in.of(segment):
            rank = move.destination.rank
            here = self._get(segment, holder, move, move.destination)
            if not np.array_equal(here, _rows(payload, move)):
                raise ChecksumError(f"rank {rank} has other bytes of {segment} than the others")
        return [found]

    def write(self, segment: Segment, holder: StateRef, payload: memoryview) -> None:
        """Write `payload`, as `read` gave it on the other side, to every rank that keeps it."""
        source = np.frombuffer(payload, np.uint8)
        for move in self._in.of(segment):
            pool, start = self._place(segment, holder, move, move.destination)
            pool.put(start, move.destination.stride, move, _rows(source, move))

    def write_pieces(
        self, segment: Segment, holder: StateRef, payload: Sequence[memoryview]
    ) -> None:
        """Write a payload in the pieces that `read` gave on the other side."""
        whole = payload[0] if len(payload) == 1 else memoryview(b"".join(payload))
        self.write(segment, holder, whole)

    def kept_bytes(self, segment: Segment) -> int:
        """Return the bytes of a segment that all ranks together keep."""
        return self._in.nbytes(segment)

    def _get(self, segment: Segment, holder: StateRef, move: SegmentMove, place: Place) -> Bytes:
        """Return the rows of one rank's pool: [rows, bytes] uint8."""
        pool, start = self._place(segment, holder, move, place)
        return pool.get(start, place.stride, move)

    def _place(
        self, segment: Segment, holder: StateRef, move: SegmentMove, place: Place
    ) -> tuple[PoolRows, int]:
        """Return the pool of one rank, and where in it the rows of a move begin, in bytes."""
        of_slots, of_pages = self._block_bytes[place.rank]
        if segment.kind is Kind.KV:
            pool, start = self._kv[place.rank], holder.pages[move.block] * of_pages
        else:
            pool, start = self._states[place.rank], holder.slot * of_slots
        return pool, start + place.offset


def _pool_rows(storage: Tensor) -> PoolRows:
    return HostRows(storage) if storage.device.type == "cpu" else DeviceRows(storage)


def _rows(payload: Bytes, move: SegmentMove) -> Bytes:
    """Return a view of the rows of a segment's bytes: [rows, bytes] uint8."""
    return _view(payload, move.at, move.at_stride, move)


def _view(data: Bytes, offset: int, stride: int, move: SegmentMove) -> Bytes:
    shape = move.rows, move.nbytes
    return np.ndarray(shape, np.uint8, buffer=data, offset=offset, strides=(stride, 1))
