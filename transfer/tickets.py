"""Tickets: the right to write one request's state into this engine's memory.

On every channel, the ticket's generation keeps late bytes from activating a request. On channels
where the receiver applies the bytes itself (gRPC and local), it also keeps them out of memory: the
check and the copy are one step under the ticket's lock, so the memory is free when `close` has
returned.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.state_ref import StateRef
from baton.transfer.errors import FrameError, TicketError, TransferError
from baton.transfer.memory.coverage import Coverage, LayeredCoverage
from baton.transfer.memory.regions import Memory
from baton.transfer.memory.segments import Kind, Segment, nbytes


@dataclass(frozen=True)
class Claim:
    """The proof that a writer shows before its first byte: its ticket, and what it computed."""

    ticket: TicketId
    prompt_hash: int
    sampling_hash: int


@dataclass(frozen=True)
class Ticket:
    """The right to write one request's KV of the target's tokens [kv_from, tokens) and its whole
    state.

    Made by `TicketTable.grant`.
    """

    handoff: HandoffId
    claim: Claim  # that the writer must show
    target: StateRef
    state: Kind = Kind.STATE  # or SNAPSHOT: which kind of state the slot receives

    @property
    def name(self) -> TicketId:
        return self.claim.ticket


@dataclass(frozen=True)
class Received:
    """The counts of what was sent, or has arrived, under a ticket."""

    segments: int
    bytes_state: int
    bytes_kv: int

    def plus(self, kind: Kind, size: int) -> "Received":
        """Return the counts with one more segment of `size` bytes."""
        if kind is Kind.KV:
            return Received(self.segments + 1, self.bytes_state, self.bytes_kv + size)
        return Received(self.segments + 1, self.bytes_state + size, self.bytes_kv)


OnReceived = Callable[[Ticket], None]
"""Called after each segment. The ticket may have been closed meanwhile."""

OnBroken = Callable[[Ticket, TransferError], None]
"""Called when the bytes of the ticket cannot be used. It may have been closed meanwhile."""

Tell = Callable[[Callable[[], None]], object]
"""Passes a call from any thread to the one that owns the tickets, now or later."""


def tell_on_loop() -> Tell:
    """Return a `Tell` for the running loop's thread.

    A call from that thread runs at once, so that the last segment is known without another turn of
    the loop.
    """
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def tell(call: Callable[[], None]) -> None:
        if threading.get_ident() == thread:
            call()
        else:
            loop.call_soon_threadsafe(call)

    return tell


@dataclass
class _Entry:
    ticket: Ticket
    on_received: OnReceived
    on_broken: OnBroken
    kv: LayeredCoverage  # tokens
    state: Coverage = field(default_factory=Coverage)  # dense bytes
    received: Received = Received(0, 0, 0)
    lock: threading.Lock = field(default_factory=threading.Lock)
    open: bool = True

    def overlap(self, segment: Segment, layers: tuple[int, int]) -> tuple[int, int] | None:
        """Return the part of the segment that has arrived already, or None."""
        if segment.kind is Kind.KV:
            return self.kv.overlap(segment.start, segment.end, layers)
        return self.state.overlap(segment.start, segment.end)

    def add(self, segment: Segment, layers: tuple[int, int], size: int) -> None:
        """Record that the segment's `size` bytes have arrived."""
        if segment.kind is Kind.KV:
            self.kv.add(segment.start, segment.end, layers)
        else:
            self.state.add(segment.start, segment.end)
        self.received = self.received.plus(segment.kind, size)


class TicketTable:
    """All open tickets. Thread-safe: any thread may apply bytes or close a ticket."""

    def __init__(
        self, memory: Memory, first_generation: int, tell: Tell = lambda call: call()
    ) -> None:
        """first_generation: above any that this worker's earlier incarnations used. tell: how the
        owners of tickets are called; by default at once, on the channel's thread."""
        self._tell = tell
        self._memory = memory
        self._generation = first_generation
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._unused: list[int] = []

    def grant(
        self,
        handoff: HandoffId,
        target: StateRef,
        *,
        prompt_hash: int,
        sampling_hash: int,
        on_received: OnReceived,
        on_broken: OnBroken,
        state: Kind = Kind.STATE,
    ) -> Ticket:
        """Open a ticket to write into `target`. Ids are reused, generations never.

        state: the kind of state that may be written, STATE or SNAPSHOT.
        """
        with self._lock:
            self._generation += 1
            number = self._unused.pop() if self._unused else len(self._entries) + 1
            claim = Claim(TicketId(number, self._generation), prompt_hash, sampling_hash)
            ticket = Ticket(handoff, claim, target, state)
            kv = LayeredCoverage(len(self._memory.pages.layers))
            self._entries[number] = _Entry(ticket, on_received, on_broken, kv)
        return ticket

    def admit(self, claim: Claim) -> None:
        """Check a writer's claim before its first byte. Raises TicketError."""
        ticket = self._entry(claim).ticket
        if claim != ticket.claim:
            raise TicketError(
                f"ticket {claim.ticket.number} was granted for another prompt or cache salt, or "
                "for other sampling parameters",
                expected=_hashes(ticket.claim),
                actual=_hashes(claim),
            )

    def apply(self, claim: Claim, segment: Segment, payload: memoryview) -> None:
        """Check and copy in one step. Raises TicketError or FrameError with no byte written."""
        memory = self._memory
        self.take(
            claim, segment, len(payload), lambda holder: memory.write(segment, holder, payload)
        )

    def take(
        self, claim: Claim, segment: Segment, size: int, put: Callable[[StateRef], None]
    ) -> None:
        """Check a segment of `size` bytes, call `put` with its place, and count it as arrived.

        All of it happens under the ticket's lock. Raises TicketError or FrameError before `put` is
        called, or what `put` raises.
        """
        entry = self._entry(claim)
        with entry.lock:
            if not entry.open:
                raise _closed(claim)
            layers = segment.layers or (0, len(self._memory.pages.layers))
            self._check(entry, segment, layers, size)
            put(entry.ticket.target)
            entry.add(segment, layers, size)
        self._tell(lambda: entry.on_received(entry.ticket))

    def received(self, claim: Claim) -> Received:
        """Return the counts of what has arrived. Raises TicketError for a closed ticket."""
        entry = self._entry(claim)
        with entry.lock:
            return entry.received

    def segments(self, ticket: TicketId) -> int | None:
        """Return how many segments have arrived; None for a closed ticket."""
        with self._lock:
            entry = self._entries.get(ticket.number)
        if entry is None or entry.ticket.name != ticket:
            return None
        with entry.lock:
            return entry.received.segments

    def complete(self, ticket: Ticket) -> bool:
        """Return True when the whole state and the KV from `kv_from` on have arrived.

        Raises TicketError for a closed ticket.
        """
        entry = self._entry(ticket.claim)
        with entry.lock:
            state = entry.state.covers(0, self._memory.slots.state_bytes)
            return state and entry.kv.covers(ticket.target.kv_from, ticket.target.tokens)

    def broken(self, claim: Claim, error: TransferError) -> None:
        """Tell the ticket's owner that its bytes cannot be used. A closed ticket is ignored."""
        self._break(claim.ticket, error, lambda ticket: ticket.claim == claim)

    def lost(self, lost: TicketId, error: TransferError) -> None:
        """Tell the ticket's owner that its bytes do not come any more. A closed ticket is
        ignored."""
        self._break(lost, error, lambda ticket: ticket.name == lost)

    def close(self, ticket: Ticket) -> bool:
        """Close a ticket: no byte is written under it after this returns.

        Waits for a copy that is under way. Returns False for a ticket that was closed already.
        """
        with self._lock:
            number = ticket.name.number
            entry = self._entries.get(number)
            if entry is None or entry.ticket.name != ticket.name:
                return False
            del self._entries[number]
            self._unused.append(number)
        with entry.lock:
            entry.open = False
        return True

    def __len__(self) -> int:
        return len(self._entries)

    def _break(
        self, broken: TicketId, error: TransferError, same: Callable[[Ticket], bool]
    ) -> None:
        with self._lock:
            entry = self._entries.get(broken.number)
        if entry is not None and same(entry.ticket):
            self._tell(lambda: entry.on_broken(entry.ticket, error))

    def _entry(self, claim: Claim) -> _Entry:
        with self._lock:
            entry = self._entries.get(claim.ticket.number)
        if entry is None:
            raise _closed(claim)
        if entry.ticket.name != claim.ticket:
            raise TicketError(
                f"ticket {claim.ticket.number} has another generation: the ticket of this write "
                "has been closed",
                expected=str(entry.ticket.name.generation),
                actual=str(claim.ticket.generation),
            )
        return entry

    def _check(self, entry: _Entry, segment: Segment, layers: tuple[int, int], size: int) -> None:
        """Raise FrameError unless the segment lies in the ticket, has its size and is new."""
        ticket, most = entry.ticket, len(self._memory.pages.layers)
        low, high = 0, self._memory.slots.state_bytes
        if segment.kind is Kind.KV:
            low, high = ticket.target.kv_from, ticket.target.tokens
        elif segment.kind is not ticket.state or segment.layers is not None:
            raise FrameError(
                f"ticket {ticket.name.number} takes no {segment}",
                expected=f"bytes of a {ticket.state.name.lower()}",
                actual=str(segment),
            )
        inside = low <= segment.start < segment.end <= high
        if not inside or (segment.kind is Kind.KV and not 0 <= layers[0] < layers[1] <= most):
            raise FrameError(
                f"{segment} lies outside ticket {ticket.name.number}",
                expected=f"within [{low}, {high}), {most} attention layers",
                actual=str(segment),
            )
        whole = nbytes(segment, self._memory.pages)
        if size != whole:
            raise FrameError(f"{segment} has {size} bytes", expected=str(whole), actual=str(size))
        there = entry.overlap(segment, layers)
        if there is not None:
            raise FrameError(
                f"{segment} overlaps [{there[0]}, {there[1]}), which has arrived already",
                expected="each byte once",
                actual=str(segment),
            )


def _closed(claim: Claim) -> TicketError:
    return TicketError(
        f"ticket {claim.ticket.number} is not open: it was activated, cancelled or expired",
        expected="an open ticket",
        actual=f"ticket {claim.ticket.number}, generation {claim.ticket.generation}",
    )


def _hashes(claim: Claim) -> str:
    return f"prompt {claim.prompt_hash:016x}, sampling {claim.sampling_hash:016x}"
