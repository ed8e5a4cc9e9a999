"""Two pools in one process, and a channel between them: any of the three."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import torch
from grpc import aio
from transfer.layouts import PAGES, SLOTS, Pools

from baton.engine.memory.layout import PageLayout, SlotLayout
from baton.transfer.channel import Connection, Writing
from baton.transfer.errors import TransferError
from baton.transfer.grpc_channel import GrpcOutlet, GrpcReceiver, GrpcSource
from baton.transfer.inlets import Inlets, OfferedInlet
from baton.transfer.local_channel import Landing, LocalHub, LocalOutlet, LocalSource
from baton.transfer.nixl_intake import NixlSource
from baton.transfer.nixl_outlet import NixlOutlet, NixlSettings
from baton.transfer.outlets import Outlets
from baton.transfer.poller import Poller
from baton.transfer.regions import Holder
from baton.transfer.tickets import Claim, Ticket, TicketTable, tell_on_loop

CHANNELS = ("grpc", "local", "nixl")
DEADLINE_S = 60.0
TOKENS = 29
SOURCE = Holder(slot=2, pages=(9, 1, 6, 3))
TARGET = Holder(slot=1, pages=(4, 11, 2, 8))


@dataclass
class Wire:
    source: Pools
    target: Pools
    tickets: TicketTable
    sent: Counter = field(default_factory=Counter)
    applied: Counter = field(default_factory=Counter)
    broken: list[TransferError] = field(default_factory=list)
    opened: Ticket | None = None
    connection: Connection = field(init=False)
    inlet: OfferedInlet = field(init=False)
    outlets: Outlets = field(init=False)
    address: str = ""

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

    def open(self, ticket: Ticket, claim: Claim | None = None) -> Writing:
        """What the control stream would carry is said to the inlet at once."""
        return self.connection.open(
            claim or ticket.claim,
            TARGET,
            lambda under_way, segments: self.inlet.moving(
                ticket.ticket_id, ticket.generation, under_way, segments
            ),
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
) -> AsyncIterator[Wire]:
    seed = random.randrange(2**32)
    print("seed", seed)
    source, target = Pools(slots, pages), Pools(slots, pages, fill=0x5A)
    source.randomise(torch.Generator().manual_seed(seed))
    tickets = TicketTable(target.memory, 0, tell_on_loop())
    wire = Wire(source, target, tickets)
    name, poller, hub = f"{seed}", Poller("nixl"), LocalHub()

    def count_sent(kind: object, size: int) -> None:
        wire.sent.update({kind: size})

    def count_applied(kind: object, size: int) -> None:
        wire.applied.update({kind: size})

    server = aio.server()
    GrpcReceiver(tickets, count_applied).add_to(server)
    wire.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    settings = NixlSettings(name, source.memory, poller, verify, lease_s, count_sent)
    sources = {
        "grpc": GrpcSource(wire.address),
        "local": LocalSource(hub, Landing(tickets, target.memory, count_applied)),
        "nixl": NixlSource(name, target.memory, tickets, poller, count_applied),
    }
    options = {"verify": verify, "on_bytes": count_sent}
    wire.outlets = Outlets([
        NixlOutlet(settings),
        LocalOutlet(hub, source.memory, **options),
        GrpcOutlet(source.memory, deadline_s=lease_s, **options),
    ])  # fmt: skip
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, poller.stop)
        stack.push_async_callback(server.stop, None)
        wire.inlet = await Inlets([sources[channel]]).open()
        stack.push_async_callback(wire.inlet.close)
        chosen = await wire.outlets.connect(wire.inlet.offers, "d0")
        assert chosen.channel == channel
        wire.inlet.chosen(channel)
        wire.connection = chosen.connection
        stack.push_async_callback(wire.connection.close)
        yield wire


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not ready():
            await asyncio.sleep(0.001)


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
