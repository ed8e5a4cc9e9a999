"""The receiving process of `baton bench transfer`: what a decode rank has for its writers, and the
other ends of raw NIXL and raw gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any

import uvloop
from grpc import aio, method_handlers_generic_handler, stream_unary_rpc_method_handler

from baton.bench.transfer_pools import TOKENS, Pools
from baton.deploy.resident import keep_freed_memory
from baton.transfer.grpc_channel import GrpcReceiver, GrpcSource
from baton.transfer.grpc_options import DATA_OPTIONS
from baton.transfer.inlets import Inlets, OfferedInlet
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_intake import NixlSource
from baton.transfer.poller import Poller, Work
from baton.transfer.segments import Kind
from baton.transfer.tickets import Ticket, TicketTable, tell_on_loop

RAW_SERVICE = "bench.Raw"


class RawNixl:
    """An agent that is looked at all the time while `on`."""

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


class Peer:
    """Does what the other process says, word by word."""

    def __init__(self, pipe: Connection, seed: int) -> None:
        self._pipe = pipe
        self._pools = Pools(seed)
        self._poller = Poller("transfers")
        self._tickets = TicketTable(self._pools.memory, 0, tell_on_loop())
        self._inlets: dict[str, OfferedInlet] = {}
        self._ticket: Ticket | None = None
        self._landed = asyncio.Event()
        self._applied = 0
        self._sources: dict[str, Any] = {}

    async def run(self) -> None:
        words: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), lambda: words.put_nowait(self._pipe.recv()))
        server = aio.server(options=DATA_OPTIONS)
        GrpcReceiver(self._tickets, self._count).add_to(server)
        raw = stream_unary_rpc_method_handler(_swallow)
        handler = method_handlers_generic_handler(RAW_SERVICE, {"Push": raw})
        server.add_generic_rpc_handlers((handler,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        memory = self._pools.memory
        self._sources = {
            "grpc": GrpcSource(address),
            "nixl": NixlSource("bench-receiver", memory, self._tickets, self._poller, self._count),
        }
        self._raw = RawNixl(self._pools, self._poller)
        self._pipe.send((address, self._raw.agent.metadata, memory.spans, self._pools.holder))
        while (word := await words.get()) is not None:
            reply = await self._do(*word)
            if reply is not None:
                self._pipe.send(reply)
        for inlet in self._inlets.values():
            await inlet.close()
        await server.stop(None)
        await asyncio.to_thread(self._poller.stop)

    async def _do(self, what: str, *args: Any) -> Any:
        """The answer, where one is waited for."""
        match what, args:
            case "open", (name, channel):
                self._inlets[name] = await Inlets([self._sources[channel]]).open()
                return self._inlets[name].offers
            case "chosen", (name, channel):
                self._inlets[name].chosen(channel)
            case "grant", ():
                self._ticket = self._grant()
                return self._ticket.claim
            case "moving", (name, under_way, segments):
                assert self._ticket is not None
                ticket = self._ticket
                self._inlets[name].moving(ticket.ticket_id, ticket.generation, under_way, segments)
            case "landed", (segments,):
                return await self._all(segments)
            case "raw", (on,):
                self._raw.turn(on)
        return None

    def _grant(self) -> Ticket:
        self._applied = 0
        return self._tickets.grant(
            "bench",
            1,
            self._pools.holder,
            TOKENS,
            prompt_hash=1,
            sampling_hash=1,
            on_received=lambda _: self._landed.set(),
            on_broken=_broken,
        )

    async def _all(self, segments: int) -> tuple[int, float]:
        """Once so many segments have arrived: their bytes, headers included, and when that was, by
        the monotonic clock that all processes of a machine share."""
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


def main(pipe: Connection, seed: int) -> None:
    """The process's own entry."""
    keep_freed_memory()

    async def serve() -> None:
        await Peer(pipe, seed).run()

    uvloop.run(serve())
