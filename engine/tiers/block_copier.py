"""Copies of slots and pages between a device's pools and the host's, beside the engine's thread."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.layout.device import use_device
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.tiers.copy_thread import Copy, CopyThread

PIECE_BYTES = 4 << 20
"""Bytes between two looks at whether to stop: a millisecond's work, or little more."""


_Move = Callable[[int, int, int], None]


class Blocks(NamedTuple):
    """The storages of one kind of block, [blocks, bytes] uint8, at both ends of a copy."""

    source: Tensor
    target: Tensor


class BlockCopier:
    """A thread that copies from one pair of pools to another, in the order of the calls.

    Neither the source's nor the target's blocks may be in use by anybody else until a copy is
    done: it follows no stream's order.
    """

    def __init__(self, name: str, kinds: Sequence[Blocks], *devices: torch.device) -> None:
        """name: of the thread. kinds: the parts of slots and of pages, by turns, of each rank.
        devices: of each rank, that of the pools which are not the host's."""
        self._kinds = kinds
        self._movers = [_mover(blocks) for blocks in kinds]
        self._devices = devices
        self._streams: list[torch.cuda.Stream] = []  # of each rank; on a CPU none
        self._thread = CopyThread(name, self._begin)

    def start(
        self,
        slots: Sequence[tuple[int, int]],
        pages: Sequence[tuple[int, int]],
        after: Callable[[], None],
    ) -> Copy:
        """Copy blocks, given as pairs of source and target. after: called on some thread at the
        end, however it ends."""
        sizes = [blocks.source.shape[1] for blocks in self._kinds]
        nbytes = len(slots) * sum(sizes[::2]) + len(pages) * sum(sizes[1::2])
        return self._thread.run(nbytes, lambda copy: self._copy(copy, (slots, pages)), after)

    def close(self) -> None:
        """Take nothing more, and wait a while for the end of what was begun."""
        self._thread.close()

    def _begin(self) -> None:
        if self._devices[0].type == "cuda":
            use_device(self._devices[0])
            self._streams = [
                torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                for device in self._devices
            ]

    def _copy(self, copy: Copy, blocks: tuple[Iterable[tuple[int, int]], ...]) -> float | None:
        began = perf_counter()
        for number, kind in enumerate(self._kinds):
            rank, which = divmod(number, 2)
            stream = self._streams[rank] if self._streams else None
            with torch.cuda.stream(stream):
                whole = self._copy_kind(copy, kind, self._movers[number], blocks[which], stream)
            if not whole:
                return None
        return perf_counter() - began

    def _copy_kind(
        self,
        copy: Copy,
        kind: Blocks,
        move: _Move,
        pairs: Iterable[tuple[int, int]],
        stream: torch.cuda.Stream | None,
    ) -> bool:
        """Copy the blocks of one kind. False where that was stopped."""
        size, unsettled = kind.source.shape[1], 0
        for source, target, count in block_runs(pairs):
            for at in range(0, count * size, PIECE_BYTES):
                if copy.stopping:
                    _settle(stream)
                    return False
                nbytes = min(PIECE_BYTES, count * size - at)
                move(source * size + at, target * size + at, nbytes)
                unsettled += nbytes
                if unsettled >= PIECE_BYTES:
                    _settle(stream)
                    unsettled = 0
        _settle(stream)
        return True


def _settle(stream: torch.cuda.Stream | None) -> None:
    """Wait until the device has done what it was given."""
    if stream is not None:
        stream.synchronize()


def block_runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (source, target, blocks) of blocks that lie behind one another at both ends.

    One copy then moves them all: each that is begun takes Python's lock from the steps' thread.
    """
    ordered = sorted(pairs)
    begin = 0
    for end, (source, target) in enumerate(ordered, start=1):
        if end == len(ordered) or ordered[end] != (source + 1, target + 1):
            yield (*ordered[begin], end - begin)
            begin = end


def _mover(blocks: Blocks) -> _Move:
    """Return what moves (from byte, to byte, bytes) of flat storages."""
    source, target = blocks.source.view(-1), blocks.target.view(-1)
    if source.device.type == target.device.type == "cpu":
        # torch would spread a copy over threads of its own, which steps have use for.
        theirs, ours = HostBytes(source.numpy()), HostBytes(target.numpy())
        return lambda at, to, nbytes: ours.put(to, theirs.view(at, nbytes))

    def move(at: int, to: int, nbytes: int) -> None:
        target[to : to + nbytes].copy_(source[at : at + nbytes], non_blocking=True)

    return move
