"""Access to the memory of one engine's pools, for channels."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from baton.core.state_ref import StateRef
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.transfer.memory.segments import Kind, Piece, Segment, nbytes, pieces

MOST_CUT = 4096  # segments of state whose pieces are kept


@dataclass(frozen=True)
class Span:
    """The place of one pool: `blocks` blocks of `block_bytes`, end to end from `address`."""

    address: int
    block_bytes: int
    blocks: int
    device: int | None  # CUDA ordinal; None: the host's memory

    @property
    def nbytes(self) -> int:
        return self.block_bytes * self.blocks


Places = Sequence[tuple[int, Piece]]
"""Blocks of a pool, each with the piece of it that is meant."""


class Region(Protocol):
    """One pool's storage: [blocks, block_bytes] uint8. Any thread may call it."""

    span: Span

    def read(self, places: Places) -> list[memoryview]:
        """Return the bytes of each place.

        They may alias the pool: use them before anything can write there.
        """
        ...

    def write(self, places: Places, payload: Iterable[memoryview]) -> None:
        """Write the bytes of each place; they are there when this returns."""
        ...


class HostRegion:
    """A pool in the CPU's memory. Bytes are copied once, by the transfer itself."""

    def __init__(self, storage: Tensor) -> None:
        self.span = span_of(storage)
        self._bytes = HostBytes(storage.view(-1).numpy())

    def read(self, places: Places) -> list[memoryview]:
        """See `Region`."""
        return [self._bytes.view(self._start(*place), place[1].nbytes) for place in places]

    def write(self, places: Places, payload: Iterable[memoryview]) -> None:
        """See `Region`."""
        for place, part in zip(places, payload, strict=True):
            self._bytes.put(self._start(*place), part)

    def _start(self, block: int, piece: Piece) -> int:
        return block * self.span.block_bytes + piece.offset


class DeviceRegion:
    """A pool in an accelerator's memory. The pieces of a segment pass together through one pinned
    buffer: a copy from or to other memory waits for the device, each piece for itself.
    """

    def __init__(self, storage: Tensor) -> None:
        self.span = span_of(storage)
        self._storage = storage
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()  # of the buffer

    def read(self, places: Places) -> list[memoryview]:
        """See `Region`. The bytes are a copy."""
        with self._lock:
            for ours, host in self._staged(places):
                host.copy_(ours, non_blocking=True)
            self._wait()
            nbytes = sum(piece.nbytes for _, piece in places)
            whole = memoryview(self._buffer[:nbytes].numpy().tobytes())
        ends = [*accumulate(piece.nbytes for _, piece in places)]
        return [
            whole[end - piece.nbytes : end] for end, (_, piece) in zip(ends, places, strict=True)
        ]

    def write(self, places: Places, payload: Iterable[memoryview]) -> None:
        """See `Region`."""
        with self._lock:
            for (ours, host), part in zip(self._staged(places), payload, strict=True):
                host.numpy()[:] = np.frombuffer(part, np.uint8)
                ours.copy_(host, non_blocking=True)
            self._wait()

    def _staged(self, places: Places) -> list[tuple[Tensor, Tensor]]:
        """Return each place, in the pool and in the buffer: [bytes] uint8."""
        nbytes = [piece.nbytes for _, piece in places]
        if self._buffer.nbytes < sum(nbytes):
            on_gpu = self.span.device is not None
            self._buffer = torch.empty(sum(nbytes), dtype=torch.uint8, pin_memory=on_gpu)
        parts = torch.split(self._buffer[: sum(nbytes)], nbytes)
        return [
            (self._storage[block, piece.offset : piece.offset + piece.nbytes], part)
            for (block, piece), part in zip(places, parts, strict=True)
        ]

    def _wait(self) -> None:
        if self.span.device is not None:
            torch.cuda.current_stream(self._storage.device).synchronize()


class Memory(Protocol):
    """The part of an engine's memory that channels use, on any number of ranks.

    slots, pages: the layouts of the undivided model, which say what a segment's bytes are
    """

    slots: SlotLayout
    pages: PageLayout

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the spans of the slots and of the pages, of each rank."""
        ...

    def read(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return the segment's bytes, in the order in which they are sent."""
        ...

    def checked(
        self, segment: Segment, holder: StateRef, payload: list[memoryview]
    ) -> list[memoryview]:
        """Return the bytes whose checksum travels with `payload`, which `read` has returned. They
        are put together in another way, so that the receiver notices a mistake of `read`."""
        ...

    def written(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return what `read` does, to be compared with what was sent. Raises ChecksumError where
        that cannot be everywhere."""
        ...

    def write(self, segment: Segment, holder: StateRef, payload: memoryview) -> None:
        """Write `payload`, as `read` gave it on the other side, to the segment's place here."""
        ...

    def write_pieces(
        self, segment: Segment, holder: StateRef, payload: Sequence[memoryview]
    ) -> None:
        """Write a payload in the pieces that `read` gave on the other side."""
        ...

    def kept_bytes(self, segment: Segment) -> int:
        """Return the bytes of a segment that all ranks together keep."""
        ...


class EngineMemory:
    """The slots and the pages of an engine with one rank. A `Memory`."""

    def __init__(self, states: StatePool, pages: PagePool) -> None:
        self.slots = states.layout
        self.pages = pages.layout
        self._cut: dict[Segment, list[Piece]] = {}
        self._states = _region(states.storage)
        self._kv = _region(pages.storage)

    @property
    def spans(self) -> tuple[Span, Span]:
        """Return the spans of the slots and of the pages."""
        return self._states.span, self._kv.span

    def read(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return the segment's bytes, in the order in which they are sent."""
        region, bound = self._bind(segment, holder)
        return region.read(bound)

    def checked(
        self, segment: Segment, holder: StateRef, payload: list[memoryview]
    ) -> list[memoryview]:
        """Return `payload`: nobody else puts it together."""
        return payload

    def written(self, segment: Segment, holder: StateRef) -> list[memoryview]:
        """Return what `read` does: each byte is kept once."""
        return self.read(segment, holder)

    def write(self, segment: Segment, holder: StateRef, payload: memoryview) -> None:
        """Write `payload`, as `read` gave it on the other side, to the segment's place here."""
        region, bound = self._bind(segment, holder)
        ends = accumulate(piece.nbytes for _, piece in bound)
        sizes = (piece.nbytes for _, piece in bound)
        region.write(bound, (payload[end - n : end] for end, n in zip(ends, sizes, strict=True)))

    def write_pieces(
        self, segment: Segment, holder: StateRef, payload: Sequence[memoryview]
    ) -> None:
        """Write a payload in the pieces that `read` gave: engines with one rank cut alike, and
        others give one piece."""
        if len(payload) == 1:
            self.write(segment, holder, payload[0])
            return
        region, bound = self._bind(segment, holder)
        region.write(bound, payload)

    def kept_bytes(self, segment: Segment) -> int:
        """Return the bytes of a segment."""
        return nbytes(segment, self.pages)

    def pieces(self, segment: Segment) -> list[Piece]:
        """Return the segment's pieces, which are not bound to ids.

        The pieces of state segments are cached: every hand-off cuts the slot in the same way, and
        finding a segment among a hundred components takes a tenth of the time to send it.
        """
        if segment.kind is Kind.KV:
            return pieces(segment, self.slots, self.pages)
        found = self._cut.get(segment)
        if found is None:
            found = pieces(segment, self.slots, self.pages)
            if len(self._cut) < MOST_CUT:
                self._cut[segment] = found
        return found

    def _bind(self, segment: Segment, holder: StateRef) -> tuple[Region, Places]:
        found = self.pieces(segment)
        if segment.kind is Kind.KV:
            return self._kv, [(holder.pages[piece.block], piece) for piece in found]
        return self._states, [(holder.slot, piece) for piece in found]


def span_of(storage: Tensor) -> Span:
    """Return the place of a pool's storage, [blocks, block_bytes] uint8."""
    device = None if storage.device.type == "cpu" else storage.device.index or 0
    return Span(storage.data_ptr(), storage.shape[1], storage.shape[0], device)


def _region(storage: Tensor) -> Region:
    return HostRegion(storage) if storage.device.type == "cpu" else DeviceRegion(storage)
