"""The side that is read from: an agent that lets peers reach this worker's pools while it lends."""

import asyncio
import logging

from baton.proto import handoff_pb2
from baton.transfer.errors import ChannelError
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_reach import to_proto
from baton.transfer.poller import Poller, Work
from baton.transfer.regions import EngineMemory

log = logging.getLogger(__name__)


class NixlLender:
    """One agent for all who read, made when first wanted. Looked at while anything is lent: over a
    network a read needs an answer."""

    def __init__(self, name: str, memory: EngineMemory, poller: Poller) -> None:
        """name: its agent's; unique over workers and their restarts."""
        self._name = name
        self._memory = memory
        self._poller = poller
        self._lent = 0
        self._agent: NixlAgent | None = None
        self._making: asyncio.Task[handoff_pb2.NixlEndpoint] | None = None

    async def endpoint(self) -> handoff_pb2.NixlEndpoint:
        """What a reader must know. Raises ChannelError."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        making = self._making
        try:
            return await asyncio.shield(making)
        except ChannelError:
            if self._making is making:
                self._making = None  # the next one tries again
            raise

    def lend(self) -> None:
        """A reader is at work, until `returned`."""
        self._lent += 1
        self._poller.wake(self)

    def returned(self) -> None:
        self._lent -= 1

    async def close(self) -> None:
        """Nothing here can be read any more."""
        if self._making is not None:
            await asyncio.wait([self._making])
        await self._poller.run(self._drop)

    def poll(self) -> Work:
        """On the poller's thread."""
        if self._agent is None:
            return Work.NONE
        try:
            self._agent.notes()  # probes, which tell of nothing
        except ChannelError as error:
            log.warning("%s", error)
            return Work.NONE
        return Work.WAITING if self._lent else Work.NONE

    def _drop(self) -> None:
        """On the poller's thread."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    async def _make(self) -> handoff_pb2.NixlEndpoint:
        self._agent = agent = await asyncio.to_thread(NixlAgent, self._name, self._memory.spans)
        return handoff_pb2.NixlEndpoint(
            metadata=agent.metadata,
            agent=agent.name,
            pools=[to_proto(span) for span in self._memory.spans],
        )
