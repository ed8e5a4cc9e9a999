"""Tests of the gRPC channel alone: invalid frames, error codes, an absent peer."""

import asyncio
import itertools
import random

import grpc
import pytest
import torch
from certificates import credentials_of
from grpc import aio
from kit.polling import until
from transfer.layouts import SLOTS, Pools
from transfer.wires import DEADLINE_S, SOURCE, TARGET, Wire, channel_context, connected

from baton.core.handoff_ids import TicketId
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.rpc.channel_options import DATA_OPTIONS
from baton.transfer.channels import frames
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.grpc.receiver import METHOD
from baton.transfer.channels.grpc.write_operation import GrpcWriteOperation
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.errors import ChannelError, ChecksumError, FrameError, TicketError
from baton.transfer.memory.regions import DeviceRegion, EngineMemory
from baton.transfer.memory.segments import Kind, Piece, Segment, cut_state
from baton.transfer.tickets import Claim, TicketTable, tell_on_loop


def encoded(segment: Segment, payload: list[memoryview]) -> bytes:
    return frames.encode_segment(segment, payload, checked=payload)


def dialled(wire: Wire) -> aio.Channel:
    """Return a connection to the receiving side, as a prefill worker makes it."""
    return credentials_of("prefill", "p0").dial_worker(wire.peer, DATA_OPTIONS)


@pytest.mark.parametrize("where", ["start", "end", "payload"])
async def test_a_corrupted_segment_is_data_loss_and_named_on_both_sides(where: str) -> None:
    async with connected("grpc") as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        segment = Segment(Kind.KV, 8, 16)
        good = encoded(segment, wire.source.memory.read(segment, SOURCE))
        at = {"start": 8, "end": 16, "payload": random.randrange(32, len(good))}[where]
        bad = bytearray(good)
        bad[at] ^= 1 << random.randrange(3)
        async with dialled(wire) as connection:
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
        await until(lambda: bool(wire.broken))
        assert [type(error) for error in wire.broken] == [ChecksumError]
        assert not wire.tickets.complete(ticket)


async def test_what_is_no_frame_is_refused() -> None:
    async with connected("grpc") as wire, dialled(wire) as connection:
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
            assert await call.code() is grpc.StatusCode.INTERNAL
        await until(lambda: len(wire.broken) == 2)
        assert all(isinstance(error, FrameError) for error in wire.broken)
        assert len(wire.broken) == 2


async def test_a_peer_that_is_not_there_is_a_channel_error_that_names_it() -> None:
    async with connected("grpc") as wire:
        ticket = wire.grant()
        gone = "127.0.0.1:1"
        peer = WorkerIdentity(worker_id="d1", role=DECODE, address=gone)
        away = await wire.channels.connect({"grpc": b""}, peer)
        writing = away.sender.open(ticket.claim, TARGET, lambda under_way, segments: None)
        with pytest.raises(ChannelError, match=gone):
            for segment in cut_state(SLOTS):
                await writing.write(segment, SOURCE)
            await writing.finish()
        await away.sender.close()


class SilentCall:
    """A call that notes what it is given, and never replies."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def write(self, message: bytes) -> None:
        self.taken.append(message)

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """Do nothing: no call is under way."""


def unverified(pools: Pools, lease_s: float) -> ChannelContext:
    tickets = TicketTable(pools.memory, 0)
    return channel_context(pools, tickets, lease_s=lease_s, verify=False)


async def test_a_message_leaves_before_the_next_one_is_made() -> None:
    source, wire = Pools(), SilentCall()
    writing = GrpcWriteOperation(
        wire, "d0", Claim(TicketId(1, 1), 5, 6), unverified(source, DEADLINE_S), LinkRate()
    )  # fmt: skip
    for sent, segment in enumerate(cut_state(SLOTS, 100), start=1):
        await writing.write(segment, SOURCE)
        assert len(wire.taken) == 1 + sent, "the opening, and all segments so far"
    assert sent > 2
    writing.cancel()


async def test_the_frames_cost_less_than_two_percent() -> None:
    """32 bytes a segment: for a megabyte of state it is nothing, for 2 KB it still fits."""
    segment = Segment(Kind.STATE, 0, 2048)
    frame = encoded(segment, [memoryview(bytes(2048))])
    assert len(frame) <= 1.02 * 2048


def test_memory_of_a_device_moves_the_same_bytes_as_the_hosts() -> None:
    source, target = Pools(), Pools()
    source.randomise(torch.Generator().manual_seed(1))
    region, other = DeviceRegion(source.pages.storage), DeviceRegion(target.pages.storage)
    places = [(3, Piece(0, 5, 40)), (1, Piece(1, 0, 16)), (3, Piece(2, 45, 8))]
    read = region.read(places)
    assert [bytes(part) for part in read] == [
        bytes(source.pages.storage[block, piece.offset : piece.offset + piece.nbytes].tolist())
        for block, piece in places
    ]
    region.read([(2, Piece(0, 0, 40))])  # which changes nothing of what was read
    other.write([(2, Piece(0, 7, 40)), (4, Piece(1, 1, 16)), (2, Piece(2, 47, 8))], read)
    assert torch.equal(target.pages.storage[2, 7:47], source.pages.storage[3, 5:45])
    assert torch.equal(target.pages.storage[4, 1:17], source.pages.storage[1, :16])
    assert torch.equal(target.pages.storage[2, 47:55], source.pages.storage[3, 45:53])
    assert isinstance(source.memory, EngineMemory)


async def test_a_peer_that_takes_nothing_is_an_error_within_the_deadline() -> None:
    """The call's `write` never returns, as when a stopped process has filled its window."""

    class Stuck(SilentCall):
        async def write(self, message: bytes) -> None:
            await asyncio.get_running_loop().create_future()

    writing = GrpcWriteOperation(
        Stuck(), "d0", Claim(TicketId(1, 1), 5, 6), unverified(Pools(), 0.05), LinkRate()
    )  # fmt: skip
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ChannelError, match=r"d0 took no bytes for 0\.05 s"):
            for segment in cut_state(SLOTS, 100):
                await writing.write(segment, SOURCE)


async def test_what_lands_is_told_at_once_on_the_loops_thread_and_soon_from_another() -> None:
    tell, heard = tell_on_loop(), asyncio.Event()
    tell(heard.set)
    assert heard.is_set()
    heard.clear()
    await asyncio.to_thread(tell, heard.set)
    async with asyncio.timeout(DEADLINE_S):
        await heard.wait()


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_write_that_fails_measures_no_bandwidth(given_up: bool) -> None:
    """Few bytes in the whole time until it failed: the link would count as a very slow one."""

    class Stuck(SilentCall):
        async def write(self, message: bytes) -> None:
            if self.taken:
                stuck.set()
                await asyncio.get_running_loop().create_future()
            await super().write(message)
            await asyncio.sleep(0)  # the segment is there then: no rest before it

    now_s, stuck = itertools.count(1.0), asyncio.Event()
    link = LinkRate(lambda: next(now_s))
    for _ in range(5):  # the first stretch is not measured, and three are needed
        wire, context = Stuck(), unverified(Pools(), 0.05 if given_up else DEADLINE_S)
        writing = GrpcWriteOperation(wire, "d0", Claim(TicketId(1, 1), 5, 6), context, link)
        segment = asyncio.ensure_future(writing.write(next(cut_state(SLOTS, 100)), SOURCE))
        stuck.clear()
        async with asyncio.timeout(DEADLINE_S):
            await stuck.wait()
            if not given_up:
                writing.cancel()
            with pytest.raises(ChannelError):
                await writing.finish()
        assert len(wire.taken) == 1, "the opening"
        segment.cancel()
    assert link.bytes_per_s == 0


async def test_nothing_more_is_sent_to_a_receiver_that_has_refused() -> None:
    class Refusing(SilentCall):
        async def read(self) -> bytes:
            return frames.encode_refusal(TicketError("the ticket is closed"))

    source, wire = Pools(), Refusing()
    writing = GrpcWriteOperation(
        wire, "d0", Claim(TicketId(1, 1), 5, 6), unverified(source, DEADLINE_S), LinkRate()
    )  # fmt: skip
    with pytest.raises(TicketError, match="the ticket is closed"):
        for segment in cut_state(SLOTS, 10):
            await writing.write(segment, SOURCE)
    assert len(wire.taken) <= 1, "the opening at most"
