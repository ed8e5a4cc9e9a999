"""Tests of hand-offs that leave by gRPC as one message."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from certificates import credentials_of
from grpc import aio
from kit.polling import until
from transfer.layouts import PAGES, SLOTS
from transfer.sizes import bytes_needed
from transfer.wires import (
    DEADLINE_S,
    SOURCE,
    TARGET,
    TOKENS,
    Wire,
    connected,
    equal_state,
    same,
    tokens_of,
)

from baton.core.handoff_ids import TicketId
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.proto.version import PROTOCOL_MINOR
from baton.rpc.channel_options import DATA_OPTIONS
from baton.transfer.channels import frames
from baton.transfer.channels.ends import Sender
from baton.transfer.channels.grpc import receiver, sender, whole_writes
from baton.transfer.channels.grpc.receiver import WHOLE_METHOD
from baton.transfer.channels.grpc.sender import GrpcSender
from baton.transfer.channels.grpc.whole_write import WholeWriteOperation
from baton.transfer.channels.grpc.write_operation import GrpcWriteOperation
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.errors import ChannelError, ChecksumError, FrameError, TicketError
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_state, nbytes
from baton.transfer.tickets import Claim, Received, Ticket

ALL = (*cut_kv(PAGES, 0, TOKENS, 100), *cut_state(SLOTS, 70))


def opened(wire: Wire, ticket: Ticket, segments: Sequence[Segment] = ALL, **more: Any) -> Any:
    """Open a write of `segments`, which leaves as one message."""
    writing = wire.open(ticket, size=sum(nbytes(each, PAGES) for each in segments), **more)
    assert isinstance(writing, WholeWriteOperation)
    return writing


async def send(
    wire: Wire, ticket: Ticket, segments: Sequence[Segment] = ALL, **more: Any
) -> Received:
    writing = opened(wire, ticket, segments, **more)
    for segment in segments:
        await writing.write(segment, SOURCE)
    return await writing.finish()


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize("kv_from", [0, 8, 11])
async def test_state_and_tokens_arrive_as_they_were(verify: bool, kv_from: int) -> None:
    async with connected("grpc", verify) as wire:
        ticket = wire.grant(kv_from)
        segments = [*cut_kv(PAGES, kv_from, TOKENS, 100), *cut_state(SLOTS, 70)]
        sent = await send(wire, ticket, segments)
        assert wire.tickets.complete(ticket)
        assert sent == wire.tickets.received(ticket.claim)
        assert sent.segments == len(segments)
        needed = bytes_needed(SLOTS, PAGES, TOKENS, kv_from)
        assert sent.bytes_state + sent.bytes_kv == needed
        assert wire.sent == wire.applied
        assert equal_state(wire)
        target = tokens_of(wire.target, TARGET, kv_from, TOKENS)
        assert same(target, tokens_of(wire.source, SOURCE, kv_from, TOKENS))
        untouched = torch.cat([t.flatten() for t in tokens_of(wire.target, TARGET, 0, kv_from)])
        assert (untouched == 0x5A).all()
        assert not wire.broken


async def test_it_leaves_with_its_last_byte_and_may_change_once_flushed() -> None:
    async with connected("grpc") as wire:
        ticket = wire.grant()
        writing = opened(wire, ticket)
        for segment in ALL:
            await writing.write(segment, SOURCE)
        await writing.flush()
        state = wire.source.states.storage[SOURCE.slot].clone()
        wire.source.states.storage[SOURCE.slot] = 0
        await until(lambda: wire.tickets.complete(ticket))
        await writing.finish()
        wire.source.states.storage[SOURCE.slot] = state
        assert equal_state(wire)


async def test_wrong_bytes_break_the_ticket_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected("grpc") as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        wrong = itertools.count()
        monkeypatch.setattr(frames, "checksum_of", lambda segment, payload: next(wrong))
        segment = Segment(Kind.KV, 8, 16)
        with pytest.raises(ChecksumError, match="are not what was sent"):
            await send(wire, ticket, [segment])
        assert [type(error) for error in wire.broken] == [ChecksumError]
        assert str(segment) in str(wire.broken[0])
        assert wire.target_bytes() == before


@pytest.mark.parametrize(("ahead", "hashed"), [(1, 6), (0, 7)], ids=["generation", "sampling"])
async def test_a_claim_on_another_ticket_writes_nothing(ahead: int, hashed: int) -> None:
    async with connected("grpc") as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        claim = Claim(TicketId(ticket.name.number, ticket.name.generation + ahead), 5, hashed)
        with pytest.raises(TicketError, match="another"):
            await send(wire, ticket, claim=claim)
        assert wire.target_bytes() == before
        assert not wire.broken, "the ticket that is open has nothing to do with it"


async def test_what_is_no_write_is_refused() -> None:
    async with connected("grpc") as wire:
        ticket = wire.grant()
        whole = b"".join(frames.parts_of_whole(ticket.claim, [[b"short"]]))
        credentials = credentials_of("prefill", "p0")
        async with credentials.dial_worker(wire.peer, DATA_OPTIONS) as connection:
            write = connection.unary_unary(WHOLE_METHOD)
            writes = [whole[:10], whole[:-1], whole[:-6], whole]
            message = frames.encode_several([each] for each in writes)
            replies = frames.decode_several(await write(message, timeout=DEADLINE_S))
            assert len(replies) == len(writes)
            for reply in replies:
                with pytest.raises(FrameError):
                    frames.decode_reply(bytes(reply))
            for broken in (b"hello", message[:-1]):
                with pytest.raises(aio.AioRpcError, match="cut short"):
                    await write(broken, timeout=DEADLINE_S)
        assert [type(error) for error in wire.broken] == [FrameError], "of the last, which opened"


async def test_nothing_arrives_after_a_cancel() -> None:
    async with connected("grpc") as wire:
        ticket, before = wire.grant(), wire.target_bytes()
        writing = opened(wire, ticket)
        await writing.write(ALL[0], SOURCE)
        writing.cancel()
        await writing.drained()
        for call in (writing.write(ALL[1], SOURCE), writing.flush(), writing.finish()):
            with pytest.raises(ChannelError, match="cancelled"):
                await call
        assert wire.target_bytes() == before


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of writes in each message that a receiver has taken."""
    taken: list[int] = []
    take = receiver.StateChannelServicer._write_whole

    async def counted(self: Any, message: bytes, context: Any) -> bytes:
        taken.append(len(frames.decode_several(message)))
        return await take(self, message, context)

    monkeypatch.setattr(receiver.StateChannelServicer, "_write_whole", counted)
    return taken


@pytest.mark.parametrize("most", [sender.WHOLE_BYTES, 1])
async def test_hand_offs_that_are_there_together_leave_together(
    most: int, messages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own end: one is for a ticket that is closed, one is cancelled before it left."""
    monkeypatch.setattr(whole_writes, "JOINED_BYTES", most)
    async with connected("grpc") as wire:
        tickets = [wire.grant() for _ in range(4)]
        wire.tickets.close(tickets[1])
        sending = [asyncio.ensure_future(send(wire, ticket)) for ticket in tickets[:3]]
        await asyncio.sleep(0)  # they wait to leave now
        cancelled = opened(wire, tickets[3])
        for segment in ALL:
            await cancelled.write(segment, SOURCE)
        cancelled.cancel()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert isinstance(ended[1], TicketError)
        assert ended[0] == ended[2] == wire.tickets.received(tickets[0].claim)
        assert [wire.tickets.complete(tickets[i]) for i in (0, 2, 3)] == [True, True, False]
        assert messages == ([3] if most > 1 else [1, 1, 1])
        assert equal_state(wire)


class Counted(LinkRate):
    """A measurement that also counts the writes under way."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.arrived: list[bool] = []

    def begin(self) -> None:
        super().begin()
        self.under_way += 1

    def end(self, size: int) -> None:
        super().end(size)
        self.under_way -= 1
        self.arrived.append(size > 0)


def count_on(link: Counted, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `sender` measure by `link`."""
    assert isinstance(sender, GrpcSender)
    monkeypatch.setattr(sender._whole, "_link", link)


async def test_the_link_is_measured_by_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected("grpc") as wire:
        link = Counted()
        count_on(link, wire.connection, monkeypatch)
        for _ in range(4):  # the first stretch connects, and one is not enough
            await send(wire, wire.grant())
        assert link.bytes_per_s > 0
        wire.connection, there = await away(wire, "127.0.0.1:1"), wire.connection
        count_on(link, wire.connection, monkeypatch)
        with pytest.raises(ChannelError):
            await send(wire, wire.grant())
        await wire.connection.close()
        wire.connection = there
        assert (link.under_way, link.arrived) == (0, [True] * 4 + [False])


async def away(wire: Wire, address: str) -> Sender:
    peer = WorkerIdentity(worker_id="d1", role=DECODE, address=address)
    return (await wire.channels.connect({"grpc": receiver.endpoint()}, peer)).sender


async def test_a_peer_that_is_not_there_is_a_channel_error_that_names_it() -> None:
    async with connected("grpc") as wire:
        wire.connection, there = await away(wire, "127.0.0.1:1"), wire.connection
        with pytest.raises(ChannelError, match=r"127\.0\.0\.1:1 broke"):
            await send(wire, wire.grant())
        await wire.connection.close()
        wire.connection = there


async def test_a_write_over_a_closed_connection_is_an_error() -> None:
    async with connected("grpc") as wire:
        await wire.connection.close()
        with pytest.raises(ChannelError, match="broke: Channel is closed"):
            await send(wire, wire.grant())


async def test_a_peer_that_does_not_reply_is_an_error_within_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(self: object, message: bytes, context: aio.ServicerContext) -> bytes:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(receiver.StateChannelServicer, "_write_whole", silent)
    async with connected("grpc", lease_s=0.2) as wire, asyncio.timeout(DEADLINE_S):
        with pytest.raises(ChannelError, match=r"took no bytes for 0\.2 s"):
            await send(wire, wire.grant())


@pytest.mark.parametrize(
    ("theirs", "size"),
    [
        (b"", 10),
        (bytes([1]), 10),
        (receiver.endpoint(), sender.WHOLE_BYTES + 1),
        (receiver.endpoint(), None),
    ],
)
async def test_a_stream_takes_the_rest(theirs: bytes, size: int | None) -> None:
    """Receivers of the release before, what is large, and what is not all there yet."""
    async with connected("grpc") as wire:
        chosen = await wire.channels.connect({"grpc": theirs}, wire.peer)
        ticket = wire.grant()
        writing = chosen.sender.open(ticket.claim, TARGET, lambda *_: None, size)
        assert isinstance(writing, GrpcWriteOperation)
        writing.cancel()
        await chosen.sender.close()


def test_a_later_minor_version_is_offered_and_understood() -> None:
    assert receiver.takes_whole(bytes([PROTOCOL_MINOR + 1]))
    assert receiver.takes_whole(receiver.endpoint()) == (PROTOCOL_MINOR >= 2)
