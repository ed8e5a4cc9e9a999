"""Tests that hold for every channel that pulls: a reader either copies from a lender or reports
that it could not."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from transfer.layouts import PAGES, SLOTS, Pools
from transfer.wires import PULLING, SOURCE, TARGET, TOKENS, channel_context, same, tokens_of

from baton.core.supervised import ProcessSupervisor
from baton.transfer.channels import registry
from baton.transfer.channels.ends import Lender, OnBytes, Reader
from baton.transfer.channels.poller import Poller
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import cut_prefix
from baton.transfer.tickets import TicketTable

pytestmark = pytest.mark.parametrize("channel", PULLING)


@asynccontextmanager
async def joined(
    channel: str,
    lease_s: float = 30.0,
    sides: tuple[Any, Any] | None = None,
    count: OnBytes | None = None,
) -> AsyncIterator[tuple[Any, Any, Lender, Reader]]:
    """A lender over one pair of pools, and a reader over another; over `sides` where given. count:
    of the bytes that are read."""
    if sides is None:
        sides = Pools(), Pools(fill=0x5A)
        sides[0].randomise(torch.Generator().manual_seed(random.randrange(2**32)))
    source, target = sides
    poller, name = Poller("transfers", ProcessSupervisor()), f"{random.randrange(2**32)}"
    counted = {} if count is None else {"count_received": count}
    ends = [
        registry.find(channel)(
            channel_context(pools, TicketTable(pools.memory, 0), f"{name}/{end}",
                            poller=poller, lease_s=lease_s, **more)
        )
        for end, pools, more in (("s", source, {}), ("t", target, counted))
    ]  # fmt: skip
    lender = ends[0].open_lender()
    endpoint = await lender.endpoint()
    with lender.lend():
        reader = await ends[1].connect_reader(endpoint)
        yield source, target, lender, reader
    await reader.close()
    await lender.close()
    await asyncio.to_thread(poller.stop)


async def test_a_reader_copies_what_is_lent(channel: str) -> None:
    async with joined(channel) as (source, target, lender, reader):
        segments = cut_prefix(SLOTS, PAGES, 0, TOKENS, lender.segment_bytes)
        await reader.read(segments, TARGET, SOURCE)
        ours = tokens_of(source, SOURCE, 0, TOKENS)
        assert same(tokens_of(target, TARGET, 0, TOKENS), ours)
        for segment in segments:
            there = b"".join(source.memory.read(segment, SOURCE))
            assert b"".join(target.memory.read(segment, TARGET)) == there


async def test_a_reader_that_is_closed_writes_nothing_any_more(channel: str) -> None:
    async with joined(channel) as (_, target, _, reader):
        await reader.close()
        before = target.pages.storage.clone()
        with pytest.raises(ChannelError, match="closed"):
            await reader.read(cut_prefix(SLOTS, PAGES, 0, TOKENS, 100), TARGET, SOURCE)
        assert reader.closed and torch.equal(target.pages.storage, before)
