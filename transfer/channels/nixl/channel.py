"""State by NIXL: bytes move between the registered pools of two agents."""

import asyncio
import itertools

from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels.base import Capabilities, Channel, ChannelContext
from baton.transfer.channels.nixl import agent
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.endpoint import decode_endpoint
from baton.transfer.channels.nixl.lender import NixlLender
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.nixl.reader import NixlReader
from baton.transfer.channels.nixl.receiver import NixlReceiver
from baton.transfer.channels.nixl.sender import NixlSender


class NixlChannel(Channel):
    """The NIXL channel. Every sender, receiver and reader has an agent, and the lender has one.

    `agent.py` gives the reason for one agent a stream.
    """

    name = "nixl"
    capabilities = Capabilities(push=True, pull=True, one_sided=True)

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self._numbers = itertools.count(1)

    @classmethod
    def check_installed(cls) -> None:
        agent.check_installed()

    @classmethod
    def maps_peers(cls) -> bool:
        return agent.maps_peers()

    @classmethod
    def maps_namespaces(cls, *, on_device: bool) -> bool:
        return agent.maps_namespaces(on_device=on_device)

    async def open_receiver(self) -> NixlReceiver:
        ours = await asyncio.to_thread(NixlAgent, self._name("r"), self.context.memory.spans)
        return NixlReceiver(ours, self.context)

    async def connect_sender(self, endpoint: bytes, peer: WorkerIdentity) -> NixlSender:
        return NixlSender(await self._reach("w", endpoint), self.context)

    async def connect_reader(self, endpoint: bytes) -> NixlReader:
        return NixlReader(await self._reach("q", endpoint), self.context)

    def open_lender(self) -> NixlLender:
        return NixlLender(lambda: self._name("l"), self.context)

    async def _reach(self, kind: str, endpoint: bytes) -> NixlPeer:
        there = decode_endpoint(endpoint)
        return await asyncio.to_thread(NixlPeer, self._name(kind), self.context.memory, there)

    def _name(self, kind: str) -> str:
        """Return the next agent's name, unique over workers and their restarts."""
        return f"{self.context.worker}/{kind}{next(self._numbers)}"
