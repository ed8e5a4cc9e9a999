"""A writer over a channel that a test holds up: what a stop does in each of its states."""

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest
from transfer.layouts import PAGES, SLOTS, Pools

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.state_ref import StateRef
from baton.core.supervised import ProcessSupervisor
from baton.engine.request.request import Parked
from baton.engine.step.layer_progress import LayersComputed
from baton.prefill.handoff_writer import HandoffWriter
from baton.prefill.messages import HandoffMessages
from baton.prefill.open_writes import OpenWrites, WrittenTicket
from baton.prefill.peer_connection import PeerConnection
from baton.prefill.prompt_state import PromptState
from baton.prefill.writer_state import WriterState
from baton.proto import common_pb2, handoff_pb2
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.memory.regions import EngineMemory
from baton.transfer.memory.segments import Segment, nbytes
from baton.transfer.tickets import Claim, Received

S = WriterState
CLAIM = Claim(TicketId(5, 9), 1, 2)
TICKET = WrittenTicket("d0", 1, TicketId(5, 9))
TARGET = StateRef(0, ())
TURNS = 20
"""Turns of the loop after which a task waits for what the test holds back."""


class HeldChannel:
    """A channel connection and its one write operation, which stop where the test says."""

    segment_bytes = 1 << 20

    def __init__(self, memory: EngineMemory) -> None:
        self.connected = asyncio.Event()
        self.flushed = asyncio.Event()
        self.finished = asyncio.Event()
        self.quiet = asyncio.Event()
        self.cancelled = False
        self.lost = Received(0, 0, 0)  # what is missing in the rank's receipt
        self._memory = memory
        self._written = Received(0, 0, 0)

    def open(
        self,
        claim: Claim,
        target: StateRef,
        on_moving: Callable[..., None],
        size: int | None = None,
    ) -> "HeldChannel":
        assert (claim, target) == (CLAIM, TARGET)
        self._on_moving, self.size = on_moving, size
        return self

    async def write(self, segment: Segment, holder: StateRef) -> None:
        self._written = self._written.plus(segment.kind, nbytes(segment, self._memory.pages))

    async def flush(self) -> None:
        await self.flushed.wait()

    async def finish(self) -> Received:
        await self.finished.wait()
        self._on_moving(False, self._written.segments)
        written, lost = self._written, self.lost
        return Received(written.segments - lost.segments, written.bytes_state, written.bytes_kv)

    def cancel(self) -> None:
        self.cancelled = True

    async def drained(self) -> None:
        await self.quiet.wait()


class FakePeer:
    """A decode rank that a channel leads to."""

    counts_by_done = True

    def __init__(self, channel: HeldChannel) -> None:
        self.rank = common_pb2.WorkerIdentity(worker_id="d0", incarnation=1)
        self.open_writes = OpenWrites(ProcessSupervisor())
        self._channel = channel

    async def sender(self) -> HeldChannel:
        await self._channel.connected.wait()
        return self._channel

    def ticket(self, ticket: TicketId) -> WrittenTicket:
        return WrittenTicket("d0", 1, ticket)


class Bench:
    """A writer, and everything that it speaks to."""

    def __init__(self, tokens: int) -> None:
        memory = Pools().memory
        self.tokens = tokens
        self.channel = HeldChannel(memory)
        self.peer = FakePeer(self.channel)
        self.sent: list[handoff_pb2.PrefillMessage] = []
        self.handoff = Handoff(HandoffId("r", 1), lambda *move: None)
        for state in (HandoffState.SCHEDULED, HandoffState.RESERVED):
            self.handoff.move(state)
        self.prompt = PromptState(memory, tokens)
        self.writer = HandoffWriter(
            self.handoff,
            self.prompt,
            memory.pages,
            cast(PeerConnection, self.peer),
            HandoffMessages(HandoffId("r", 1), self.sent.append),
            "p0",
        )
        self.writing: asyncio.Task[None] | None = None
        self.quiet = 0

    async def reach(self, state: WriterState) -> None:
        """Walk the writer to `state` and hold it there."""
        for _ in S:
            if self.writer.state is not state:
                self._next_step()
                await turns()
            if self.writing is not None and self.writing.done():
                self.writing.result()
        assert self.writer.state is state

    def _next_step(self) -> None:
        """Let the writer go on by one state."""
        steps: dict[WriterState, Callable[[], object]] = {
            S.WAITING: self._grant,
            S.CONNECTING: self._connect,
            S.POSTING: self._compute,
            S.POSTED: lambda: self.prompt.on_complete(0.0),
            S.FLUSHING: self.channel.flushed.set,
            S.RELEASED: self.channel.finished.set,
        }
        steps[self.writer.state]()

    def _grant(self) -> None:
        self.writer.grant(CLAIM)
        self.writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        await self.writer.write(CLAIM, TARGET)
        await self.writer.receipt()

    def _connect(self) -> None:
        """Connect, and report that the first recurrent layer is computed."""
        self.channel.connected.set()
        self._computed(1, 0, last=False)

    def _compute(self) -> None:
        """Report that every layer is computed, as the engine does before it samples."""
        self._computed(len(SLOTS.layers), len(PAGES.layers), last=True)

    def _computed(self, recurrent: int, attention: int, last: bool) -> None:
        pages = tuple(range(-(-self.tokens // PAGES.page_size)))
        parked_state = Parked(StateRef(0, pages, self.tokens if last else 0))
        self.prompt.on_layers(
            LayersComputed("r", 0, recurrent, attention, last=last, parked_state=parked_state), 0.0
        )

    def stop(self) -> None:
        if self.writing is not None:
            self.writing.cancel()
        self.writer.stop(self._on_quiet)

    def _on_quiet(self) -> None:
        self.quiet += 1

    def drained(self) -> list[tuple[int, int]]:
        """The tickets that the rank was told to be quiet."""
        return [
            (m.drained.ticket_id, m.drained.generation) for m in self.sent if m.HasField("drained")
        ]


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("state", [S.WAITING, S.CONNECTING])
async def test_a_writer_that_has_opened_nothing_stops_at_once(
    state: WriterState, seeded: random.Random
) -> None:
    bench = Bench(seeded.randint(1, 60))
    await bench.reach(state)
    bench.stop()
    assert (bench.writer.state, bench.quiet) == (S.STOPPED, 1)
    # Without a ticket there is nothing that the rank could wait for.
    assert bench.drained() == ([] if state is S.WAITING else [(5, 9)])
    bench.channel.connected.set()
    await turns()
    assert not bench.channel.cancelled
    assert bench.writer.state is S.STOPPED


@pytest.mark.parametrize("state", [S.POSTING, S.POSTED, S.FLUSHING, S.RELEASED])
async def test_a_writer_with_bytes_under_way_frees_memory_only_once_they_have_drained(
    state: WriterState, seeded: random.Random
) -> None:
    bench = Bench(seeded.randint(1, 60))
    await bench.reach(state)
    asked: list[str] = []
    bench.stop()
    bench.peer.open_writes.ask(TICKET, lambda: asked.append("drained"))
    await turns()
    assert bench.channel.cancelled
    assert (bench.writer.state, bench.quiet, bench.drained()) == (S.DRAINING, 0, [])
    assert not asked
    bench.channel.quiet.set()
    await turns()
    assert (bench.writer.state, bench.quiet, bench.drained()) == (S.STOPPED, 1, [(5, 9)])
    assert asked == ["drained"]


async def test_a_writer_whose_bytes_were_received_has_nothing_to_drain(
    seeded: random.Random,
) -> None:
    bench = Bench(seeded.randint(1, 60))
    await bench.reach(S.RECEIVED)
    bench.handoff.move(HandoffState.COMPLETE)
    bench.stop()
    assert (bench.writer.state, bench.quiet, bench.drained()) == (S.RECEIVED, 1, [])
    assert not bench.channel.cancelled
    asked: list[str] = []
    bench.peer.open_writes.ask(TICKET, lambda: asked.append("drained"))
    assert asked == ["drained"]


@pytest.mark.parametrize("end", [HandoffState.CANCELLED, HandoffState.FAILED, HandoffState.EXPIRED])
async def test_a_rank_that_gives_up_what_was_received_is_told_that_its_memory_is_quiet(
    end: HandoffState, seeded: random.Random
) -> None:
    """The rank may cancel after the receipt, before the hand-off has made its last move."""
    bench = Bench(seeded.randint(1, 60))
    await bench.reach(S.RECEIVED)
    bench.handoff.move(end)
    bench.stop()
    assert (bench.writer.state, bench.quiet, bench.drained()) == (S.RECEIVED, 1, [(5, 9)])
    assert not bench.channel.cancelled


async def test_done_is_said_once_by_the_writer_or_by_who_took_it(seeded: random.Random) -> None:
    for taken in (False, True):
        bench = Bench(seeded.randint(1, 60))
        await bench.reach(S.POSTING)
        assert bench.writer.take_done() is None
        await bench.reach(S.POSTED)
        bench.prompt.on_complete(0.0)
        done = bench.writer.take_done() if taken else None
        assert (done is not None) == taken
        await turns()
        assert bench.writer.state is S.FLUSHING
        assert bench.writer.take_done() is None
        assert [m.WhichOneof("kind") for m in bench.sent] == ([] if taken else ["done"])


@pytest.mark.parametrize("ahead", [True, False], ids=["all at once", "in parts"])
async def test_a_channel_is_told_how_much_comes_where_all_is_there(
    ahead: bool, seeded: random.Random
) -> None:
    bench = Bench(seeded.randint(1, 60))
    if ahead:
        bench._compute()
    await bench.reach(S.RECEIVED)
    written = bench.channel._written
    assert written.bytes_kv == bench.tokens * PAGES.token_bytes
    assert bench.channel.size == (written.bytes_state + written.bytes_kv if ahead else None)


async def test_a_receipt_of_other_counts_is_a_loss_of_data(seeded: random.Random) -> None:
    bench = Bench(seeded.randint(1, 60))
    await bench.reach(S.RELEASED)
    bench.channel.lost = Received(1, 0, 0)
    bench.channel.finished.set()
    await turns()
    assert bench.writing is not None
    with pytest.raises(ApiError, match="d0 received") as raised:
        bench.writing.result()
    assert raised.value.code is ErrorCode.DATA_LOSS
    assert raised.value.retryable
    assert bench.writer.state is S.RELEASED


@pytest.mark.parametrize("counts_by_done", [True, False], ids=["this release", "the one before"])
async def test_done_tells_a_rank_when_to_look_no_more_unless_it_is_older(
    counts_by_done: bool, seeded: random.Random
) -> None:
    bench = Bench(seeded.randint(1, 60))
    bench.peer.counts_by_done = counts_by_done
    await bench.reach(S.RECEIVED)
    kinds = [m.WhichOneof("kind") for m in bench.sent]
    assert kinds == (["done"] if counts_by_done else ["done", "moving"])
