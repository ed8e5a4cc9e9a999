"""State by NIXL: bytes move between the registered pools of two agents."""

import asyncio
import itertools

from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels.base import Capabilities, Channel, ChannelContext
from baton.transfer.channels.nixl import agent, ucx
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.endpoint import decode_endpoint
from baton.transfer.channels.nixl.lender import NixlLender
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.nixl.reader import NixlReader
from baton.transfer.channels.nixl.receiver import NixlReceiver
from baton.transfer.channels.nixl.sender import NixlSender
from baton.transfer.channels.trusted_network import TrustedNetwork, check_interfaces, is_rdma


class NixlChannel(Channel):
    """The NIXL channel. Every sender, receiver and reader has an agent, and the lender has one.

    `agent.py` gives the reason for one agent a stream.
    """

    name = "nixl"
    capabilities = Capabilities(push=True, pull=True, one_sided=True)

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        ucx.confine(context.network.devices)
        self._numbers = itertools.count(1)

    def reads_alone(self, pid: int | None) -> bool:
        """Return True when no read of `pid` is made of messages that this process must answer.

        UCX over TCP aborts a process that answers a reader who has left: a lender that was
        suspended while it lent did, when it was resumed.
        """
        if any(is_rdma(device) for device in self.context.network.devices):
            return True
        if any(span.device is not None for span in self.context.memory.spans):
            return pid is not None and ucx.maps_peers()
        return pid is not None and ucx.copies_by_kernel(pid)

    @classmethod
    def check_settings(cls, network: TrustedNetwork) -> None:
        check_interfaces(network.interfaces)
        ucx.check_settings(network.devices)

    @classmethod
    def check_room(cls, ends: int) -> None:
        ucx.check_shared_memory(ends)

    @classmethod
    def check_usable(cls, network: TrustedNetwork) -> None:
        cls.check_settings(network)
        agent.check_installed()
        ucx.check_shared_memory()

    @classmethod
    def maps_peers(cls) -> bool:
        return ucx.maps_peers()

    @classmethod
    def maps_namespaces(cls, *, on_device: bool) -> bool:
        return ucx.maps_namespaces(on_device=on_device)

    async def open_receiver(self) -> NixlReceiver:
        spans, devices = self.context.memory.spans, self.context.network.devices
        ours = await asyncio.to_thread(NixlAgent, self._name("r"), spans, devices)
        return NixlReceiver(ours, self.context)

    async def connect_sender(self, endpoint: bytes, peer: WorkerIdentity) -> NixlSender:
        return NixlSender(await self._reach("w", endpoint), self.context)

    async def connect_reader(self, endpoint: bytes) -> NixlReader:
        return NixlReader(await self._reach("q", endpoint), self.context)

    def open_lender(self) -> NixlLender:
        return NixlLender(lambda: self._name("l"), self.context)

    async def _reach(self, kind: str, endpoint: bytes) -> NixlPeer:
        name, there = self._name(kind), decode_endpoint(endpoint)
        memory, devices = self.context.memory, self.context.network.devices
        return await asyncio.to_thread(NixlPeer, name, memory, there, devices)

    def _name(self, kind: str) -> str:
        """Return the next agent's name, unique over workers and their restarts."""
        return f"{self.context.worker}/{kind}{next(self._numbers)}"
