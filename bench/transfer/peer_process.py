"""The receiving process of `baton bench transfer`.

It has a decode rank's receivers, and the other ends of raw NIXL and raw gRPC.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from grpc import aio, method_handlers_generic_handler, stream_unary_rpc_method_handler

from baton.bench.transfer.pools import Pools
from baton.core.handoff_ids import HandoffId
from baton.core.process_end import ending_owner
from baton.deploy.process.tuning import keep_freed_memory
from baton.rpc.channel_options import DATA_OPTIONS
from baton.rpc.credentials import Credentials
from baton.transfer.channels import registry
from baton.transfer.channels.base import Channel, ChannelContext
from baton.transfer.channels.channel_set import ChannelSet, Receiver
from baton.transfer.channels.ends import Lender
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.poller import Poller, Work
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Kind
from baton.transfer.tickets import Ticket, TicketTable, tell_on_loop

RAW_SERVICE = "bench.Raw"
RECEIVER = "bench-receiver"
LEASE_S = 60.0
BENCHED = tuple(
    channel
    for channel in registry.CHANNELS
    if channel.capabilities.push and not channel.capabilities.in_process
)
"""The channels that join two processes."""


class RawNixl:
    """A NIXL agent that is polled without a pause while `on`."""

    def __init__(self, pools: Pools, poller: Poller) -> None:
        self.agent = NixlAgent("bench-raw-receiver", pools.memory.spans)
        self._poller = poller
        self._on = False

    def turn(self, on: bool) -> None:
        self._on = on
        self._poller.wake(self)

    def poll(self) -> Work:
        self.agent.notes()
        return Work.WAITING if self._on else Work.NONE

    def fail(self, why: ChannelError) -> None:
        """Do nothing: the writing process measures its writes, and fails with them."""


class Peer:
    """The receiver's side: it runs the commands that the writing process sends."""

    def __init__(self, pipe: Connection, certificate: Path, pools: Pools) -> None:
        """certificate: the folder with this process's."""
        self._pipe = pipe
        self._pools = pools
        self._credentials = Credentials(certificate)
        self._poller = Poller("transfers", ending_owner())
        self._tickets = TicketTable(self._pools.memory, 0, tell_on_loop())
        self._receivers: dict[str, Receiver] = {}
        self._lender: Lender | None = None
        self._loans = ExitStack()
        self._ticket: Ticket | None = None
        self._landed = asyncio.Event()
        self._applied = 0
        self._channels: dict[str, Channel] = {}

    async def run(self) -> None:
        words: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), lambda: words.put_nowait(self._pipe.recv()))
        server = aio.server(options=DATA_OPTIONS)
        raw = stream_unary_rpc_method_handler(_swallow)
        handler = method_handlers_generic_handler(RAW_SERVICE, {"Push": raw})
        server.add_generic_rpc_handlers((handler,))
        secure = server.add_secure_port("127.0.0.1:0", self._credentials.server())
        plain = server.add_insecure_port("127.0.0.1:0")
        self._channels = {kind.name: kind(self._context()) for kind in BENCHED}
        for channel in self._channels.values():
            channel.add_to(server)
        await server.start()
        memory = self._pools.memory
        self._raw = RawNixl(self._pools, self._poller)
        ports = f"127.0.0.1:{secure}", f"127.0.0.1:{plain}"
        self._pipe.send((ports, self._raw.agent.metadata, memory.spans, self._pools.holder))
        while (word := await words.get()) is not None:
            reply = await self._do(*word)
            if reply is not None:
                self._pipe.send(reply)
        self._loans.close()
        if self._lender is not None:
            await self._lender.close()
        for receiver in self._receivers.values():
            await receiver.close()
        await server.stop(None)
        await asyncio.to_thread(self._poller.stop)

    async def _do(self, what: str, *args: Any) -> Any:
        """Run one command and return its answer, if it has one."""
        match what, args:
            case "open", (name, channel):
                self._receivers[name] = await ChannelSet([self._channels[channel]]).open_receiver()
                return self._receivers[name].offers
            case "chosen", (name, channel):
                self._receivers[name].chosen(channel)
            case "grant", ():
                self._ticket = self._grant()
                return self._ticket.claim
            case "moving", (name, under_way, segments):
                assert self._ticket is not None
                self._receivers[name].moving(self._ticket.name, under_way, segments)
            case "landed", (segments,):
                return await self._all(segments)
            case "raw", (on,):
                self._raw.turn(on)
            case "lend", (channel,):
                lender = self._lender = self._channels[channel].open_lender()
                endpoint = await lender.endpoint()
                self._loans.enter_context(lender.lend())
                return endpoint, lender.segment_bytes
        return None

    def _context(self) -> ChannelContext:
        return ChannelContext(
            worker=RECEIVER,
            memory=self._pools.memory,
            tickets=self._tickets,
            poller=self._poller,
            lease_s=LEASE_S,
            verify=True,
            count_sent=self._count,
            count_received=self._count,
            credentials=self._credentials,
        )

    def _grant(self) -> Ticket:
        self._applied = 0
        return self._tickets.grant(
            HandoffId("bench", 1),
            self._pools.holder,
            prompt_hash=1,
            sampling_hash=1,
            on_received=lambda _: self._landed.set(),
            on_broken=_broken,
        )

    async def _all(self, segments: int) -> tuple[int, float]:
        """Wait for this many segments and return their bytes, headers included, and the time.

        The clock is the monotonic one that all processes of a machine share.
        """
        assert self._ticket is not None
        while self._tickets.received(self._ticket.claim).segments < segments:
            self._landed.clear()
            await self._landed.wait()
        when = time.perf_counter()
        self._tickets.close(self._ticket)
        return self._applied, when

    def _count(self, kind: Kind, nbytes: int) -> None:
        self._applied += nbytes


async def _swallow(messages: AsyncIterator[bytes], context: aio.ServicerContext) -> bytes:
    total = 0
    async for message in messages:
        total += len(message)
    return total.to_bytes(8, "little")


def _broken(ticket: Ticket, error: Exception) -> None:
    raise error


def main(
    pipe: Connection, seed: int, certificate: Path, ranks: int = 1, where: str = "cpu"
) -> None:
    """Run the receiving process. where: the torch device of its memory, of so many ranks."""
    keep_freed_memory()

    async def serve() -> None:
        await Peer(pipe, certificate, Pools(seed, ranks, where)).run()

    uvloop.run(serve())
