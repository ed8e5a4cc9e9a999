"""The writing process of `baton bench transfer`: our channels, and raw NIXL and raw gRPC."""

import asyncio
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from grpc import aio

from baton.bench.transfer_peer import RAW_SERVICE
from baton.bench.transfer_pools import Case, Pools
from baton.transfer.channel import Connection as Way
from baton.transfer.grpc_channel import GRPC, GrpcOutlet
from baton.transfer.grpc_options import DATA_OPTIONS
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_outlet import NIXL, NixlOutlet, NixlSettings
from baton.transfer.nixl_plan import PAGES, SLOTS
from baton.transfer.outlets import Outlets
from baton.transfer.poller import Poller
from baton.transfer.regions import Holder, Span
from baton.transfer.segments import MESSAGE_BYTES, Kind

LEASE_S = 60.0


class Sides:
    """Every method gives seconds; all send the same bytes from the same memory."""

    def __init__(self, pipe: Connection, pools: Pools) -> None:
        self._pipe = pipe
        self.pools = pools
        self._poller = Poller("transfers")
        self._ways: dict[str, Way] = {}
        self._address: str
        self._target: Holder
        self._spans: tuple[Span, Span]
        self.moved = 0  # bytes of the last hand-off by a channel of ours, as its receiver counts

    async def open(self) -> None:
        self._address, metadata, self._spans, self._target = await self._heard()
        self._raw = NixlAgent("bench-raw-writer", self.pools.memory.spans)
        self._raw_peer = self._raw.add_peer(metadata)
        for verify in (False, True):
            for channel in (NIXL, GRPC):
                await self._connect(channel, verify)
        self._stream = aio.insecure_channel(self._address, options=DATA_OPTIONS)

    async def close(self) -> None:
        for way in self._ways.values():
            await way.close()
        self._raw.close()
        await self._stream.close()
        await asyncio.to_thread(self._poller.stop)

    async def ours(self, channel: str, verify: bool, case: Case) -> float:
        """From the first segment to the receiver's word that all are checked and in place."""
        name, slots = _name(channel, verify), self.pools.memory.slots
        way = self._ways[name]
        self._pipe.send(("grant",))
        claim = await self._heard()
        segments = list(case.segments(slots, way.segment_bytes))
        began = time.perf_counter()
        writing = way.open(claim, self._target, lambda *word: self._pipe.send(
            ("moving", name, *word)))  # fmt: skip
        for segment in segments:
            await writing.write(segment, self.pools.holder)
        self._pipe.send(("landed", len(segments)))
        await writing.finish()
        finished = time.perf_counter()
        landed: float
        self.moved, landed = await self._heard()
        return max(finished, landed) - began

    async def raw_nixl(self, case: Case) -> float:
        """One descriptor, as large as can be, one write, polled without a pause."""
        pool, span = (PAGES, case.tokens) if case.tokens else (SLOTS, case.layers)
        assert span
        ours, theirs = self.pools.memory.spans[pool], self._spans[pool]
        size = case.nbytes(self.pools.memory.slots)
        source, target = (
            np.array([[s.address + s.block_bytes, size, s.device or 0]], dtype=np.uint64)
            for s in (ours, theirs)
        )
        self._pipe.send(("raw", True))
        began = time.perf_counter()
        write = self._raw.write_parts(source, target, self._raw_peer, b"raw")
        while not self._raw.done(write):
            pass
        took = time.perf_counter() - began
        self._pipe.send(("raw", False))
        return took

    async def raw_grpc(self, case: Case) -> float:
        """The same message again and again, to a receiver that drops it."""
        size = case.nbytes(self.pools.memory.slots)
        message = bytes(MESSAGE_BYTES)
        call = self._stream.stream_unary(f"/{RAW_SERVICE}/Push")
        began = time.perf_counter()
        pushing = call()
        for _ in range(size // MESSAGE_BYTES):
            await pushing.write(message)
        await pushing.write(message[: size % MESSAGE_BYTES])
        await pushing.done_writing()
        assert int.from_bytes(await pushing, "little") == size
        return time.perf_counter() - began

    def memcpy(self, case: Case, into: torch.Tensor) -> float:
        size = case.nbytes(self.pools.memory.slots)
        pool = self.pools.pages if case.tokens else self.pools.states
        source = pool.storage.view(-1)[:size]
        began = time.perf_counter()
        into[:size].copy_(source)
        return time.perf_counter() - began

    async def _connect(self, channel: str, verify: bool) -> None:
        name, memory = _name(channel, verify), self.pools.memory
        self._pipe.send(("open", name, channel))
        offers = await self._heard()
        settings = NixlSettings(name, memory, self._poller, verify, LEASE_S, _uncounted)
        outlets = Outlets([
            NixlOutlet(settings),
            GrpcOutlet(memory, verify=verify, deadline_s=LEASE_S, on_bytes=_uncounted),
        ])  # fmt: skip
        chosen = await outlets.connect(offers, "the receiver")
        self._pipe.send(("chosen", name, channel))
        self._ways[name] = chosen.connection

    async def _heard(self) -> Any:
        return await asyncio.to_thread(self._pipe.recv)


def names() -> Iterator[tuple[str, bool]]:
    """Our channels, each without and with checksums."""
    for channel in (NIXL, GRPC):
        for verify in (False, True):
            yield channel, verify


def _name(channel: str, verify: bool) -> str:
    return f"{channel}-{'full' if verify else 'off'}"


def _uncounted(kind: Kind, nbytes: int) -> None:
    """The receiver counts."""
