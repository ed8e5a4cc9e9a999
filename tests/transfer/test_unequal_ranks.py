"""Every channel between engines with other numbers of ranks: each rank gets what it keeps, and no
more bytes move than that."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from kit.polling import until
from transfer.layouts import Pools
from transfer.rank_pools import RankPools
from transfer.sizes import NOTE_BYTES
from transfer.test_pull import joined
from transfer.wires import CHANNELS, PULLING, SOURCE, TARGET, TOKENS, Wire, connected

from baton.engine.layout.layout import (
    AttentionShape,
    LatentShape,
    PageLayout,
    RecurrentShape,
    SlotLayout,
)
from baton.engine.layout.shards import SubBlock
from baton.transfer.channels.nixl.crossing import Crossing
from baton.transfer.channels.nixl.endpoint import NixlEndpoint
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.errors import ChannelError, ChecksumError, TransferError
from baton.transfer.memory.rank_memory import RankMemory
from baton.transfer.memory.rank_moves import SegmentMove
from baton.transfer.memory.segments import Kind, Segment, cut_kv, cut_prefix, cut_state

# Four heads; two groups and two KV heads, of which four ranks keep each twice.
FUSED = (SubBlock("x", 4, 5), *(SubBlock(name, 2, 3, shared=True) for name in "BC"))
MIXER = RecurrentShape((4 * 5 + 2 * 2 * 3, 3), (4, 5, 3), FUSED)
SLOTS = SlotLayout((MIXER, MIXER), torch.bfloat16, torch.float32)
PAGES = PageLayout((AttentionShape(2, 40), LatentShape(9), AttentionShape(4, 3)), 8, torch.bfloat16)
FROM = 11  # the target has the KV of the tokens below
SIZES = ((1, 2), (2, 1), (2, 4), (4, 2), (1, 4), (2, 2), (4, 4))
LIMIT = 3000


def engines(p: int, d: int) -> tuple[RankPools, RankPools, RankPools]:
    """A source with random state, a target, and what the target is to be in the end."""
    whole = Pools(SLOTS, PAGES)
    whole.randomise(torch.Generator().manual_seed(random.randrange(2**32)))
    source, target, end = (RankPools(SLOTS, PAGES, ranks, 0x5A) for ranks in (p, d, d))
    source.put(whole, SOURCE, SOURCE, range(TOKENS))
    end.put(whole, SOURCE, TARGET, range(FROM, TOKENS))
    return source, target, end


def needed(d: int, kind: Kind) -> int:
    """Bytes that all ranks of the target keep."""
    if kind is Kind.KV:
        return sum(PAGES.shard(rank, d).token_bytes for rank in range(d)) * (TOKENS - FROM)
    return sum(SLOTS.shard(rank, d).state_bytes for rank in range(d))


@pytest.mark.parametrize(("p", "d"), SIZES, ids=str)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_hand_off_fills_every_rank_layer_by_layer(channel: str, p: int, d: int) -> None:
    source, target, end = engines(p, d)
    async with connected(channel, sides=(source, target)) as wire:
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        segments = [*cut_state(SLOTS, LIMIT)]
        for layer in range(len(PAGES.layers)):
            segments += cut_kv(PAGES, FROM, TOKENS, LIMIT, (layer, layer + 1))
        for segment in random.sample(segments, len(segments)):
            await writing.write(segment, SOURCE)
        await writing.finish()
        await until(lambda: wire.tickets.complete(ticket))
        await until(lambda: wire.sent == wire.applied)
        check(wire, end, d, len(segments))


def check(wire: Wire, end: RankPools, d: int, segments: int) -> None:
    assert not wire.broken
    assert wire.target.equals(end, but=frozenset({0}))  # NIXL tries its way in block 0
    moved, most = sum(wire.sent.values()), sum(needed(d, kind) for kind in (Kind.STATE, Kind.KV))
    assert moved - segments * NOTE_BYTES <= 1.02 * most


@pytest.mark.parametrize(("p", "d"), SIZES, ids=str)
@pytest.mark.parametrize("channel", PULLING)
async def test_a_prefix_is_read_into_every_rank(channel: str, p: int, d: int) -> None:
    source, target, end = engines(p, d)
    read: Counter[Kind] = Counter()

    def count(kind: Kind, nbytes: int) -> None:
        read[kind] += nbytes

    async with joined(channel, sides=(source, target), count=count) as (*_, reader):
        await reader.read(cut_prefix(SLOTS, PAGES, FROM, TOKENS, LIMIT), TARGET, SOURCE)
        assert target.equals(end, but=frozenset({0}))
    once = {Kind.KV: PAGES.token_bytes * (TOKENS - FROM), Kind.SNAPSHOT: SLOTS.state_bytes}
    assert read.keys() == once.keys()
    for kind, least in once.items():
        assert least <= read[kind] <= 1.02 * needed(d, kind)


def test_a_peer_whose_ranks_keep_other_parts_is_refused() -> None:
    memory = RankPools(SLOTS, PAGES, 2).memory
    four, six = RankPools(SLOTS, PAGES, 4).memory.spans, memory.spans * 3
    wrong = (*four[:2], replace(four[2], block_bytes=256), *four[3:])
    for spans, message in ((wrong, "other sizes than those of .* on 4 ranks"), (six, "divides")):
        with pytest.raises(ChannelError, match=message):
            NixlPeer("a", memory, NixlEndpoint("b", b"", spans), ())


@pytest.mark.parametrize("channel", CHANNELS)
async def test_bytes_that_are_sent_twice_are_noticed(channel: str) -> None:
    source, target, _ = engines(2, 4)
    async with connected(channel, sides=(source, target)) as wire:
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        (segment,) = cut_kv(PAGES, FROM, TOKENS, layers=(0, 1))
        with contextlib.suppress(TransferError):  # the writer is told, where the receiver answers
            for _ in range(2):
                await writing.write(segment, SOURCE)
            await writing.finish()
        await until(lambda: bool(wire.broken) or channel == "local")
        assert wire.tickets.received(ticket.claim).segments == 1
        assert not wire.tickets.complete(ticket)


@pytest.mark.parametrize("fault", ["another rank", "another head"])
@pytest.mark.parametrize("channel", ["grpc", "local"])
async def test_a_leader_that_reads_another_group_is_noticed(
    channel: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts a message together from its ranks: the checksum is of what each of them keeps."""
    source, target, _ = engines(2, 4)
    assert isinstance(source.memory, RankMemory)
    plan = source.memory._out
    moves = plan.of

    def mixed_up(segment: Segment) -> Iterator[SegmentMove]:
        for move in moves(segment):
            rank, offset = move.source.rank, move.source.offset
            if fault == "another rank":
                place = replace(move.source, rank=1 - rank)
            else:  # the keys of the second of its heads, where those of the first belong
                place = replace(move.source, offset=offset + 3 * 2)
            yield replace(move, source=place)

    monkeypatch.setattr(plan, "of", mixed_up)
    async with connected(channel, sides=(source, target)) as wire:
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        (segment,) = cut_kv(PAGES, FROM, TOKENS, layers=(2, 3))
        with pytest.raises(ChecksumError, match="are not what was sent"):
            await writing.write(segment, SOURCE)
            await writing.finish()
        assert not wire.tickets.complete(ticket)


async def test_a_sender_that_writes_another_group_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over NIXL, where runs go from rank to rank: the checksum is of the undivided bytes."""
    source, target, _ = engines(2, 4)

    def mixed_up(*args: Any) -> Any:
        ours, theirs = written(*args)
        return ours[::-1].copy(), theirs  # the last rank's head goes where the first's belongs

    written = Crossing.written
    monkeypatch.setattr(Crossing, "written", mixed_up)
    async with connected("nixl", sides=(source, target)) as wire:
        ticket = wire.grant(FROM)
        writing = wire.open(ticket)
        for segment in cut_kv(PAGES, FROM, TOKENS, layers=(0, 1)):
            await writing.write(segment, SOURCE)
        await until(lambda: bool(wire.broken))
        assert isinstance(wire.broken[0], ChecksumError)
        writing.cancel()
        await writing.drained()
