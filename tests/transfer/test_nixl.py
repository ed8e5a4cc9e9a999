"""Tests of the NIXL channel alone: leases of writers, agents that end, and a writer that was
stopped."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from kit.polling import until
from transfer.layouts import SLOTS, Pools
from transfer.test_pull import joined
from transfer.wires import DEADLINE_S as LEASE_S
from transfer.wires import SOURCE, TARGET, channel_context, connected

from baton.core.supervised import ProcessSupervisor
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.lender import LONGEST_PAUSE, NixlLender
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.nixl.receiver import NixlReceiver
from baton.transfer.channels.nixl.sender import NixlSender
from baton.transfer.channels.poller import Poller
from baton.transfer.channels.writer_lease import SHARE, WriterLease
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import Span
from baton.transfer.memory.segments import cut_state
from baton.transfer.tickets import TicketTable

ROOT = Path(__file__).resolve().parents[2]
WRITER = Path(__file__).with_name("late_writer.py")
AGENTS = Path(__file__).with_name("short_agents.py")
SIZE = 32 << 20
DEADLINE_S = 60.0
CHANCE_S = 0.3  # for a resumed writer to do harm


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_writers_lease_is_renewed_by_every_word_and_ends_before_its_peers() -> None:
    clock = Clock()
    lease = WriterLease(2.0, clock)
    begun = lease.lapses
    for _ in range(5):
        clock.now += 2.0 * SHARE - 0.01
        assert lease.allows(begun)
        lease.heard()
    clock.now += 2.0 * SHARE
    assert not lease.allows(begun)


def test_what_is_read_after_a_stop_renews_nothing_that_was_begun_before_it() -> None:
    clock = Clock()
    lease = WriterLease(2.0, clock)
    begun = lease.lapses
    clock.now += 10.0  # stopped
    lease.heard()  # what the peer had said before it gave up
    assert not lease.allows(begun)
    assert lease.allows(lease.lapses), "a hand-off that begins now has nothing to do with it"


async def test_past_its_lease_a_writer_posts_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected("nixl") as wire:
        ticket = wire.grant()
        writing = wire.open(ticket)
        first, *rest = cut_state(SLOTS, 40)
        await writing.write(first, SOURCE)
        await writing.flush()
        await until(lambda: wire.tickets.received(ticket.claim).segments == 1)
        before = wire.target_bytes()
        later = time.monotonic() + LEASE_S  # nobody is heard of meanwhile
        assert isinstance(wire.connection, NixlSender)
        monkeypatch.setattr(wire.connection._lease, "_clock", lambda: later)
        wire.connection.heard()
        with pytest.raises(ChannelError, match="past the lease"):
            for segment in rest:
                await writing.write(segment, SOURCE)
            await writing.flush()
        writing.cancel()
        await writing.drained()
        assert wire.target_bytes() == before


async def test_a_severed_connection_ends_what_is_under_way_and_says_so() -> None:
    async with connected("nixl") as wire:
        writing = wire.open(wire.grant())
        assert isinstance(wire.connection, NixlSender)
        wire.connection.sever(ChannelError("the peer is gone"))
        await wire.connection.lost()
        with pytest.raises(ChannelError, match="the peer is gone"):
            for segment in cut_state(SLOTS, 40):
                await writing.write(segment, SOURCE)
            await writing.finish()
        writing.cancel()
        await writing.drained()


@pytest.mark.parametrize("method", ["fetch", "ended"])
async def test_a_read_is_answered_at_once_where_the_channel_has_a_fault(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would end an hour later."""
    async with joined("nixl", lease_s=3600.0) as (*_, reader):
        monkeypatch.setattr(NixlPeer, method, faulty)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ChannelError, match="the channel has failed: IndexError: page 7"):
                await reader.read(list(cut_state(SLOTS, 40)), TARGET, SOURCE)
        assert reader.closed


async def test_so_is_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected("nixl", lease_s=3600.0) as wire:
        monkeypatch.setattr(NixlPeer, "post", faulty)
        writing = wire.open(wire.grant())
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ChannelError, match="the channel has failed: IndexError: page 7"):
                for segment in cut_state(SLOTS, 40):
                    await writing.write(segment, SOURCE)
                await writing.finish()
            await wire.connection.lost()


async def test_the_owner_of_a_ticket_hears_of_a_fault_of_its_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected("nixl", lease_s=3600.0) as wire:
        monkeypatch.setattr(NixlReceiver, "_take", faulty)
        writing = wire.open(wire.grant())
        (segment,) = cut_state(SLOTS)
        await writing.write(segment, SOURCE)
        await until(lambda: bool(wire.broken))
        assert "IndexError: page 7" in str(wire.broken[0])
        writing.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await writing.drained()


def faulty(*args: object) -> None:
    raise IndexError("page 7")


def test_agents_that_end_leave_no_descriptors_and_no_threads() -> None:
    """The agents run in a process of their own: here, what earlier tests left may end at any
    time."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/.types"}
    done = subprocess.run([sys.executable, str(AGENTS)], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=DEADLINE_S)  # fmt: skip
    before, after = done.stdout.split("\n")[:2]
    assert after == before


def test_a_writer_that_was_stopped_cannot_write_once_its_peers_agent_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the network alone; the kernel's copies between processes would go on."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    memory = torch.zeros(SIZE, dtype=torch.uint8)
    agent = NixlAgent(f"receiver-{os.getpid()}", [Span(memory.data_ptr(), SIZE, 1, None)])
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/.types"}
    words = [sys.executable, str(WRITER), str(memory.data_ptr()), str(SIZE)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as writer:  # fmt: skip
        assert writer.stdin and writer.stdout
        try:
            writer.stdin.write(agent.metadata.hex() + "\n")
            writer.stdin.flush()
            look_until_written(agent, memory)
            os.kill(writer.pid, signal.SIGSTOP)
            memory.fill_(1)
            os.kill(writer.pid, signal.SIGCONT)
            look_until_written(agent, memory)  # what a teardown is to prevent
            os.kill(writer.pid, signal.SIGSTOP)
            agent.close()
            memory.fill_(1)
            os.kill(writer.pid, signal.SIGCONT)
            time.sleep(CHANCE_S)  # a write would have come by then
            assert (memory == 1).all()
        finally:
            writer.kill()


@asynccontextmanager
async def lending(clock: Clock) -> AsyncIterator[tuple[NixlLender, Poller]]:
    pools, poller, numbers = Pools(), Poller("transfers", ProcessSupervisor()), itertools.count()
    context = channel_context(pools, TicketTable(pools.memory, 0), poller=poller)
    lender = NixlLender(lambda: f"lender-{os.getpid()}-{next(numbers)}", context, clock)
    yield lender, poller
    await lender.close()
    await asyncio.to_thread(poller.stop)


async def test_a_loan_that_ends_well_keeps_its_agent() -> None:
    async with lending(Clock()) as (lender, poller):
        endpoint = await lender.endpoint()
        with lender.lend():
            pass
        await poller.run(lambda: None)
        assert await lender.endpoint() == endpoint


async def test_a_loan_that_ends_early_takes_its_agent_along() -> None:
    """The reader may have posted reads; UCX over TCP aborts if they are answered too late."""
    async with lending(Clock()) as (lender, poller):
        endpoint = await lender.endpoint()
        with pytest.raises(TimeoutError), lender.lend():
            raise TimeoutError
        await poller.run(lambda: None)
        again = await lender.endpoint()
        assert again != endpoint
        with lender.lend():
            pass
        assert await lender.endpoint() == again


async def test_an_agent_is_kept_until_the_last_read_by_it_has_ended() -> None:
    async with lending(Clock()) as (lender, _):
        endpoint = await lender.endpoint()
        assert lender._agent is not None
        agent = lender._agent.agent
        with lender.lend():
            with pytest.raises(TimeoutError), lender.lend():
                raise TimeoutError
            await until(lambda: lender._agent is None)
            assert await lender.endpoint() != endpoint
            assert agent.metadata  # that reads may go on by
        await until(lambda: agent._agent is None)


async def test_a_lender_that_was_suspended_while_it_lent_does_not_poll_its_agent() -> None:
    clock = Clock()
    async with lending(clock) as (lender, poller):
        endpoint = await lender.endpoint()
        clock.now += 10 * LEASE_S  # nothing was lent: no suspension
        with lender.lend():
            await poller.run(lambda: None)
            assert await lender.endpoint() == endpoint
            clock.now += LEASE_S * LONGEST_PAUSE * 0.9
            await poller.run(lambda: None)
            await asyncio.sleep(0.01)  # it would have been closed by then
            assert await lender.endpoint() == endpoint
            clock.now += LEASE_S * LONGEST_PAUSE * 1.1
            await until(lambda: lender._agent is None)
        assert await lender.endpoint() != endpoint


def look_until_written(agent: NixlAgent, memory: torch.Tensor) -> None:
    """Make progress until the writer's sevens are there."""
    deadline = time.monotonic() + DEADLINE_S
    while not (memory == 7).any():
        assert time.monotonic() < deadline
        agent.notes()
