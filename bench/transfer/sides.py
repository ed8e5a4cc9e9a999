"""The writing process of `baton bench transfer`: our channels, raw NIXL and raw gRPC."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from grpc import aio

from baton.bench.transfer.peer_process import BENCHED, LEASE_S, RAW_SERVICE, RECEIVER, main
from baton.bench.transfer.pools import Pools, TransferCase
from baton.core.process_end import ending_owner
from baton.core.state_ref import StateRef
from baton.deploy.certs.cluster_credentials import ClusterCredentials
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.rpc.channel_options import DATA_OPTIONS
from baton.rpc.credentials import Credentials
from baton.rpc.identity import ProcessRole
from baton.transfer.channels import registry
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.channel_set import ChannelSet
from baton.transfer.channels.ends import Reader, Sender
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.plan import PAGES, SLOTS
from baton.transfer.channels.poller import Poller
from baton.transfer.memory.regions import Span
from baton.transfer.memory.segments import MESSAGE_BYTES, Kind
from baton.transfer.tickets import TicketTable

JOIN_S = 30.0


@asynccontextmanager
async def joined(
    seed: int,
    certificates: ClusterCredentials,
    here: int = 1,
    there: int = 1,
    where: str = "cpu",
) -> AsyncIterator["Sides"]:
    """Start the receiving process, of `there` ranks, and join it as the leader of `here`.

    where: the torch device of both sides' memory.
    """
    writer = certificates.issue(ProcessRole.PREFILL, "bench-writer")
    receiver = certificates.issue(ProcessRole.DECODE, RECEIVER)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=main, args=(theirs, seed, receiver, there, where), daemon=True)
    child.start()
    sides = Sides(ours, Pools(seed, here, where), Credentials(writer))
    await sides.open()
    try:
        yield sides
    finally:
        await sides.close()
        ours.send(None)
        child.join(JOIN_S)


class Sides:
    """Writers that send the same bytes from the same memory. Every method returns seconds."""

    def __init__(self, pipe: Connection, pools: Pools, credentials: Credentials) -> None:
        self._pipe = pipe
        self._credentials = credentials
        self.pools = pools
        self._poller = Poller("transfers", ending_owner())
        self._senders: dict[str, Sender] = {}
        self._readers: dict[str, tuple[Reader, int]] = {}  # with the lender's segment size
        self._receiver: WorkerIdentity
        self._target: StateRef
        self._spans: tuple[Span, ...]
        self.moved = 0  # bytes of the last hand-off or read by a channel of ours, as counted there

    async def open(self) -> None:
        (secure, plain), metadata, self._spans, self._target = await self._heard()
        self._receiver = WorkerIdentity(worker_id=RECEIVER, role=DECODE, address=secure)
        self._raw = NixlAgent("bench-raw-writer", self.pools.memory.spans)
        self._raw_peer = self._raw.add_peer(metadata)
        for verify in (False, True):
            for channel in BENCHED:
                await self._connect(channel.name, verify)
        self._plain = aio.insecure_channel(plain, options=DATA_OPTIONS)
        self._tls = self._credentials.dial_worker(self._receiver, DATA_OPTIONS)

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()
        for reader, _ in self._readers.values():
            await reader.close()
        self._raw.close()
        await self._plain.close()
        await self._tls.close()
        await asyncio.to_thread(self._poller.stop)

    async def ours(self, channel: str, verify: bool, case: TransferCase) -> float:
        """Measure from the first segment to the receiver's word that all are checked and in
        place.
        """
        name, slots = _name(channel, verify), self.pools.memory.slots
        sender = self._senders[name]
        self._pipe.send(("grant",))
        claim = await self._heard()
        segments = list(case.segments(slots, sender.segment_bytes))
        began = time.perf_counter()
        writing = sender.open(claim, self._target, lambda *word: self._pipe.send(
            ("moving", name, *word)))  # fmt: skip
        for segment in segments:
            await writing.write(segment, self.pools.holder)
        self._pipe.send(("landed", len(segments)))
        await writing.finish()
        finished = time.perf_counter()
        landed: float
        self.moved, landed = await self._heard()
        return max(finished, landed) - began

    async def read(self, channel: str, case: TransferCase) -> float:
        """Measure reading what the other process lends, over one connection."""
        if channel not in self._readers:
            self._pipe.send(("lend", channel))
            endpoint, limit = await self._heard()
            mine = registry.find(channel)(self._context("bench-reader", verify=False))
            self._readers[channel] = await mine.connect_reader(endpoint), limit
        reader, limit = self._readers[channel]
        segments = list(case.segments(self.pools.memory.slots, limit))
        self.moved = 0
        began = time.perf_counter()
        await reader.read(segments, self.pools.holder, self._target)
        return time.perf_counter() - began

    def kept_bytes(self, case: TransferCase, ranks: int) -> int:
        """Return the payload of a case that so many ranks keep, together."""
        return case.kept_bytes(self.pools.memory.slots, ranks)

    async def raw_nixl(self, case: TransferCase) -> float:
        """Measure one write of one descriptor of the largest size, polled without a pause."""
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

    async def raw_grpc(self, case: TransferCase, *, tls: bool) -> float:
        """Measure sending one message repeatedly to a receiver that drops it."""
        size = case.nbytes(self.pools.memory.slots)
        message = bytes(MESSAGE_BYTES)
        call = (self._tls if tls else self._plain).stream_unary(f"/{RAW_SERVICE}/Push")
        began = time.perf_counter()
        pushing = call()
        for _ in range(size // MESSAGE_BYTES):
            await pushing.write(message)
        await pushing.write(message[: size % MESSAGE_BYTES])
        await pushing.done_writing()
        assert int.from_bytes(await pushing, "little") == size
        return time.perf_counter() - began

    def memcpy(self, case: TransferCase, into: torch.Tensor) -> float:
        size = case.nbytes(self.pools.memory.slots)
        pool = self.pools.pages if case.tokens else self.pools.states
        source = pool.storage.view(-1)[:size]
        began = time.perf_counter()
        into[:size].copy_(source)
        return time.perf_counter() - began

    async def _connect(self, channel: str, verify: bool) -> None:
        name = _name(channel, verify)
        self._pipe.send(("open", name, channel))
        offers = await self._heard()
        channels = ChannelSet([registry.find(channel)(self._context(name, verify=verify))])
        chosen = await channels.connect(offers, self._receiver)
        self._pipe.send(("chosen", name, channel))
        self._senders[name] = chosen.sender

    def _context(self, name: str, *, verify: bool) -> ChannelContext:
        memory = self.pools.memory
        return ChannelContext(
            worker=name,
            memory=memory,
            tickets=TicketTable(memory, 0),
            poller=self._poller,
            lease_s=LEASE_S,
            verify=verify,
            count_sent=_uncounted,
            count_received=self._count,
            credentials=self._credentials,
        )

    def _count(self, kind: Kind, nbytes: int) -> None:
        self.moved += nbytes  # of a read, on one thread at a time

    async def _heard(self) -> Any:
        return await asyncio.to_thread(self._pipe.recv)


def names() -> Iterator[tuple[str, bool]]:
    """Yield our channels, each without and with checksums."""
    for channel in BENCHED:
        for verify in (False, True):
            yield channel.name, verify


def _name(channel: str, verify: bool) -> str:
    return f"{channel}-{'full' if verify else 'off'}"


def _uncounted(kind: Kind, nbytes: int) -> None:
    """Ignore the count: the receiver counts."""
