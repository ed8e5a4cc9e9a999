"""Two pools in one process, real gRPC between them."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
import torch
from grpc import aio
from transfer.layouts import PAGES, SLOTS, Pools

from baton.transfer import frames
from baton.transfer.errors import (
    ChannelError,
    ChecksumError,
    FrameError,
    TicketError,
    TransferError,
)
from baton.transfer.grpc_channel import METHOD, GrpcConnection, GrpcOutlet, GrpcReceiver
from baton.transfer.regions import DeviceRegion, EngineMemory, Holder
from baton.transfer.segments import Kind, Segment, bytes_needed, cut_kv, cut_state
from baton.transfer.tickets import Claim, Ticket, TicketTable

TOKENS = 29
SOURCE = Holder(slot=2, pages=(9, 1, 6, 3))
TARGET = Holder(slot=1, pages=(4, 11, 2, 8))


@dataclass
class Wire:
    source: Pools
    target: Pools
    connection: GrpcConnection
    outlet: GrpcOutlet
    tickets: TicketTable
    address: str
    sent: Counter = field(default_factory=Counter)
    applied: Counter = field(default_factory=Counter)
    broken: list[TransferError] = field(default_factory=list)

    def grant(self, kv_from: int = 0) -> Ticket:
        return self.tickets.grant(
            "r",
            1,
            TARGET,
            TOKENS,
            prompt_hash=5,
            sampling_hash=6,
            kv_from=kv_from,
            on_received=lambda ticket: None,
            on_broken=lambda ticket, error: self.broken.append(error),
        )

    def target_bytes(self) -> bytes:
        storages = (self.target.states.storage, self.target.pages.storage)
        return b"".join(s.numpy().tobytes() for s in storages)


@asynccontextmanager
async def connected(verify: bool = True) -> AsyncIterator[Wire]:
    seed = random.randrange(2**32)
    print("seed", seed)
    source, target = Pools(), Pools(fill=0x5A)
    source.randomise(torch.Generator().manual_seed(seed))
    sent, applied = Counter(), Counter()
    tickets = TicketTable(target.memory, 0)
    server = aio.server()
    GrpcReceiver(tickets, lambda k, n: applied.update({k: n})).add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    outlet = GrpcOutlet(
        source.memory, verify=verify, deadline_s=10, on_bytes=lambda k, n: sent.update({k: n})
    )
    connection = await outlet.connect(address.encode())
    try:
        yield Wire(source, target, connection, outlet, tickets, address, sent, applied)
    finally:
        await connection.close()
        await server.stop(None)


def still(under_way: bool, segments: int) -> None:
    """gRPC makes progress by itself."""
    raise AssertionError("nobody needs to be told")


def equal_state(wire: Wire) -> bool:
    ours, theirs = wire.source.states, wire.target.states
    pairs = [*zip(ours.conv, theirs.conv, strict=True), *zip(ours.ssm, theirs.ssm, strict=True)]
    return all(a is None or torch.equal(raw(a[SOURCE.slot]), raw(b[TARGET.slot])) for a, b in pairs)


def tokens_of(pools: Pools, holder: Holder, start: int, end: int) -> list[torch.Tensor]:
    index = torch.tensor(holder.pages)
    layers = (*pools.pages.k, *pools.pages.v, *pools.pages.latents)
    return [raw(layer[index].flatten(0, 1)[start:end]) for layer in layers]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Bits, since random bits may be NaN."""
    return tensor.contiguous().view(torch.uint8)


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize("kv_from", [0, 8, 11])
async def test_state_and_tokens_arrive_as_they_were(verify: bool, kv_from: int) -> None:
    async with connected(verify) as wire:
        ticket = wire.grant(kv_from)
        writing = wire.connection.open(ticket.claim, still)
        segments = [*cut_kv(PAGES, kv_from, TOKENS, 100), *cut_state(SLOTS, 70)]
        for segment in segments:
            await writing.write(segment, SOURCE)
        received = await writing.finish()
        assert wire.tickets.complete(ticket)
        assert received.segments == len(segments)
        assert wire.sent == wire.applied
        assert received.bytes_state == SLOTS.state_bytes
        needed = bytes_needed(SLOTS, PAGES, TOKENS, kv_from)
        assert received.bytes_state + received.bytes_kv == needed
        for kind, payload in (
            (Kind.STATE, received.bytes_state),
            (Kind.KV, received.bytes_kv),
        ):
            headers = frames.HEADER_BYTES * sum(segment.kind is kind for segment in segments)
            assert wire.sent[kind] == payload + headers
        assert equal_state(wire)
        target = tokens_of(wire.target, TARGET, kv_from, TOKENS)
        assert same(target, tokens_of(wire.source, SOURCE, kv_from, TOKENS))
        untouched = torch.cat([t.flatten() for t in tokens_of(wire.target, TARGET, 0, kv_from)])
        assert (untouched == 0x5A).all()
        assert not wire.broken


async def test_kv_of_some_layers_arrives_in_those_layers() -> None:
    async with connected() as wire:
        ticket = wire.grant()
        writing = wire.connection.open(ticket.claim, still)
        low, high = cut_kv(PAGES, 0, 5, layers=(0, 1)), cut_kv(PAGES, 0, 5, layers=(1, 2))
        for segment in (*high, *cut_kv(PAGES, 5, TOKENS), *low, *cut_state(SLOTS)):
            await writing.write(segment, SOURCE)
        received = await writing.finish()
        assert wire.tickets.complete(ticket)
        assert received == wire.tickets.received(ticket.claim)
        ours = tokens_of(wire.source, SOURCE, 0, TOKENS)
        assert same(ours, tokens_of(wire.target, TARGET, 0, TOKENS))


@pytest.mark.parametrize("where", ["start", "end", "payload"])
async def test_a_corrupted_segment_is_data_loss_and_named_on_both_sides(where: str) -> None:
    async with connected() as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        segment = Segment(Kind.KV, 8, 16)
        good = frames.encode_segment(segment, wire.source.memory.read(segment, SOURCE), True)
        at = {"start": 8, "end": 16, "payload": random.randrange(32, len(good))}[where]
        bad = bytearray(good)
        bad[at] ^= 1 << random.randrange(3)
        async with aio.insecure_channel(wire.address) as connection:
            call = connection.stream_stream(METHOD)()
            await call.write(frames.encode_opening(ticket.claim))
            await call.write(bytes(bad))
            await call.done_writing()
            with pytest.raises(ChecksumError, match="are not what was sent"):
                frames.decode_reply(await call.read())
            with pytest.raises(aio.AioRpcError):
                await call.read()
            assert await call.code() is grpc.StatusCode.DATA_LOSS
            if where == "payload":
                assert "kv tokens [8, 16)" in await call.details()
        assert wire.target_bytes() == before
        assert [type(error) for error in wire.broken] == [ChecksumError]
        assert not wire.tickets.complete(ticket)


async def test_a_wrong_generation_is_refused_and_no_byte_changes() -> None:
    async with connected() as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        stale = Claim(ticket.ticket_id, ticket.generation + 1, 5, 6)
        writing = wire.connection.open(stale, still)
        with pytest.raises(TicketError, match="another generation"):
            for segment in cut_state(SLOTS, 10):
                await writing.write(segment, SOURCE)
            await writing.finish()
        assert wire.target_bytes() == before
        assert not wire.broken, "the ticket that is open has nothing to do with it"


async def test_a_ticket_closed_midway_takes_nothing_more() -> None:
    async with connected() as wire:
        ticket = wire.grant()
        writing = wire.connection.open(ticket.claim, still)
        first, *rest = cut_state(SLOTS, 40)
        await writing.write(first, SOURCE)
        async with asyncio.timeout(10):
            while not wire.applied:
                await asyncio.sleep(0)
        wire.tickets.close(ticket)
        before = wire.target_bytes()
        with pytest.raises(TicketError, match="not open"):
            for segment in rest:
                await writing.write(segment, SOURCE)
            await writing.finish()
        assert wire.target_bytes() == before


async def test_a_ticket_that_its_last_byte_activated_is_no_error_to_the_writer() -> None:
    """The rank may close it between the last byte and the writer's goodbye."""
    async with connected() as wire:
        ticket = wire.grant()
        writing = wire.connection.open(ticket.claim, still)
        for segment in (*cut_kv(PAGES, 0, TOKENS), *cut_state(SLOTS)):
            await writing.write(segment, SOURCE)
        async with asyncio.timeout(10):
            while not wire.tickets.complete(ticket):
                await asyncio.sleep(0)
        wire.tickets.close(ticket)
        assert (await writing.finish()).bytes_state == SLOTS.state_bytes


async def test_what_is_no_frame_is_refused() -> None:
    async with connected() as wire, aio.insecure_channel(wire.address) as connection:
        ticket = wire.grant()
        opening = frames.encode_opening(ticket.claim)
        for messages in ([], [b"hello"], [opening, b"short"], [opening, bytes(40)]):
            call = connection.stream_stream(METHOD)()
            for message in messages:
                await call.write(message)
            await call.done_writing()
            with pytest.raises(FrameError):
                frames.decode_reply(await call.read())
            with pytest.raises(aio.AioRpcError):
                await call.read()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert all(isinstance(error, FrameError) for error in wire.broken)
        assert len(wire.broken) == 2


async def test_a_peer_that_is_not_there_is_a_channel_error_that_names_it() -> None:
    async with connected() as wire:
        ticket = wire.grant()
        gone = "127.0.0.1:1"
        writing = (await wire.outlet.connect(gone.encode())).open(ticket.claim, still)
        with pytest.raises(ChannelError, match=gone):
            for segment in cut_state(SLOTS):
                await writing.write(segment, SOURCE)
            await writing.finish()


async def test_the_frames_cost_less_than_two_percent() -> None:
    """32 bytes a segment: for a megabyte of state it is nothing, for 2 KB it still fits."""
    segment = Segment(Kind.STATE, 0, 2048)
    frame = frames.encode_segment(segment, [memoryview(bytes(2048))], True)
    assert len(frame) <= 1.02 * 2048


def test_memory_of_a_device_moves_the_same_bytes_as_the_hosts() -> None:
    source, target = Pools(), Pools()
    source.randomise(torch.Generator().manual_seed(1))
    region, other = DeviceRegion(source.pages.storage), DeviceRegion(target.pages.storage)
    assert bytes(region.read(3, 5, 40)) == bytes(source.pages.storage[3, 5:45].tolist())
    other.write(2, 7, region.read(3, 5, 40))
    assert torch.equal(target.pages.storage[2, 7:47], source.pages.storage[3, 5:45])
    assert isinstance(source.memory, EngineMemory)
