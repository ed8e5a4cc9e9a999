"""Two pools in one process, and a channel between them: any of the three."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from certificates import credentials_of
from grpc import aio
from transfer.layouts import PAGES, SLOTS, Pools

from baton.core.handoff_ids import HandoffId
from baton.core.state_ref import StateRef
from baton.core.supervised import ProcessSupervisor
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.transfer.channels import registry
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.channel_set import ChannelSet, Receiver
from baton.transfer.channels.ends import Sender, WriteOperation
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.channels.poller import Poller
from baton.transfer.errors import TransferError
from baton.transfer.tickets import Claim, Ticket, TicketTable, tell_on_loop

CHANNELS = tuple(c.name for c in registry.CHANNELS if c.capabilities.push)
PULLING = tuple(c.name for c in registry.CHANNELS if c.capabilities.pull)
assert PULLING, "the tests of channels that pull would be skipped in silence"
DEADLINE_S = 60.0
TOKENS = 29
SOURCE = StateRef(slot=2, pages=(9, 1, 6, 3), tokens=TOKENS)
TARGET = StateRef(slot=1, pages=(4, 11, 2, 8), tokens=TOKENS)


@dataclass
class Wire:
    source: Any  # what has a `memory`
    target: Any
    tickets: TicketTable
    sent: Counter = field(default_factory=Counter)
    applied: Counter = field(default_factory=Counter)
    broken: list[TransferError] = field(default_factory=list)
    opened: Ticket | None = None
    connection: Sender = field(init=False)
    receiver: Receiver = field(init=False)
    channels: ChannelSet = field(init=False)
    address: str = ""

    @property
    def peer(self) -> WorkerIdentity:
        """The receiving side."""
        return WorkerIdentity(worker_id="d0", role=DECODE, address=self.address)

    def grant(self, kv_from: int = 0) -> Ticket:
        return self.tickets.grant(
            HandoffId("r", 1),
            replace(TARGET, kv_from=kv_from),
            prompt_hash=5,
            sampling_hash=6,
            on_received=lambda ticket: None,
            on_broken=lambda ticket, error: self.broken.append(error),
        )

    def open(
        self, ticket: Ticket, claim: Claim | None = None, size: int | None = None
    ) -> WriteOperation:
        """Open a write, and tell the receiver at once what the control stream would carry.

        size: payload bytes of all that will be written; None: not known.
        """
        return self.connection.open(
            claim or ticket.claim,
            TARGET,
            lambda under_way, segments: self.receiver.moving(ticket.name, under_way, segments),
            size,
        )

    def target_bytes(self) -> bytes:
        storages = (self.target.states.storage, self.target.pages.storage)
        return b"".join(s.numpy().tobytes() for s in storages)


@asynccontextmanager
async def connected(
    channel: str,
    verify: bool = True,
    slots: SlotLayout = SLOTS,
    pages: PageLayout = PAGES,
    lease_s: float = DEADLINE_S,
    sides: tuple[Any, Any] | None = None,
) -> AsyncIterator[Wire]:
    """sides: pools to join; None: a source with random bytes, and a target."""
    seed = random.randrange(2**32)
    print("seed", seed)
    if sides is None:
        sides = Pools(slots, pages), Pools(slots, pages, fill=0x5A)
        sides[0].randomise(torch.Generator().manual_seed(seed))
    source, target = sides
    tickets = TicketTable(target.memory, 0, tell_on_loop())
    wire = Wire(source, target, tickets)
    poller, hub = Poller("transfers", ProcessSupervisor()), LocalHub()

    def count_sent(kind: object, size: int) -> None:
        wire.sent.update({kind: size})

    def count_applied(kind: object, size: int) -> None:
        wire.applied.update({kind: size})

    server = aio.server()
    credentials = credentials_of("decode", "d0")
    wire.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials.server())}"
    common: dict[str, Any] = {"poller": poller, "hub": hub, "lease_s": lease_s, "verify": verify}
    ours = channel_context(
        source, TicketTable(source.memory, 0), f"{seed}/s", count_sent=count_sent, **common
    )
    theirs = channel_context(
        target, tickets, f"{seed}/t",
        count_received=count_applied, **common,
    )  # fmt: skip
    receiving = registry.find(channel)(theirs)
    receiving.add_to(server)
    await server.start()
    wire.channels = ChannelSet([kind(ours) for kind in registry.CHANNELS if kind.capabilities.push])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, poller.stop)
        stack.push_async_callback(server.stop, None)
        wire.receiver = await ChannelSet([receiving]).open_receiver()
        stack.push_async_callback(wire.receiver.close)
        chosen = await wire.channels.connect(wire.receiver.offers, wire.peer)
        assert chosen.name == channel
        wire.receiver.chosen(channel)
        wire.connection = chosen.sender
        stack.push_async_callback(wire.connection.close)
        yield wire


def channel_context(
    pools: Any, tickets: TicketTable, worker: str = "w/1", **more: Any
) -> ChannelContext:
    """Return the context that one worker gives its channels; it counts no bytes unless told to.

    pools: what has a `memory`.
    """
    given: dict[str, Any] = {
        "poller": None,
        "lease_s": DEADLINE_S,
        "verify": True,
        "credentials": credentials_of("prefill", "p0"),
        "count_sent": _uncounted,
        "count_received": _uncounted,
    } | more
    return ChannelContext(worker=worker, memory=pools.memory, tickets=tickets, **given)


def _uncounted(kind: object, size: int) -> None:
    """Nobody asks."""


def equal_state(wire: Wire) -> bool:
    ours, theirs = wire.source.states, wire.target.states
    pairs = [*zip(ours.conv, theirs.conv, strict=True), *zip(ours.ssm, theirs.ssm, strict=True)]
    return all(a is None or torch.equal(raw(a[SOURCE.slot]), raw(b[TARGET.slot])) for a, b in pairs)


def tokens_of(pools: Pools, holder: StateRef, start: int, end: int) -> list[torch.Tensor]:
    index = torch.tensor(holder.pages)
    layers = (*pools.pages.k, *pools.pages.v, *pools.pages.latents)
    return [raw(layer[index].flatten(0, 1)[start:end]) for layer in layers]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Bits, since random bits may be NaN."""
    return tensor.contiguous().view(torch.uint8)


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
