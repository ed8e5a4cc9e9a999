"""The lending end of NIXL: an agent by which peers read this worker's pools."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from baton.core.supervised import child
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.endpoint import encode_endpoint
from baton.transfer.channels.nixl.plan import segment_bytes, wire_bytes
from baton.transfer.channels.poller import Work
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment

log = logging.getLogger(__name__)

LONGEST_PAUSE = 1 / 4
"""The longest pause between two polls while the agent lends, as a fraction of the lease. An agent
that paused for longer is not polled again."""


@dataclass(eq=False)
class _LendingAgent:
    """An agent by which readers read, and the number of loans that they read under."""

    agent: NixlAgent
    loans: int = 0  # changed on the loop's thread
    retired: bool = False  # set on the poller's thread


class NixlLender:
    """One agent for all readers, made when the first reader asks.

    The poller serves the agent while anything is lent, because a read over a network needs
    progress on this side.

    UCX over TCP aborts the process (`ucp_request.inl: Fatal: unexpected error`) where it answers a
    read whose reader has closed its sockets. Such reads are found in two cases: a loan ended before
    its reader said that it had read all, or this process was suspended while it lent. In both the
    agent is retired: it is not polled again, and later readers connect to the next one.

    A retired agent is destroyed when its last loan has ended. UCX aborts a reader
    (`arbiter.c: Assertion ucs_arbiter_group_is_empty`) whose peer closes its sockets while a read
    by the kernel's copies is under way.
    """

    def __init__(
        self,
        name: Callable[[], str],
        context: ChannelContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: returns the name of the next agent; unique over workers and their restarts."""
        self._name = name
        self._context = context
        self.verify = context.verify
        self.segment_bytes = segment_bytes(verify=context.verify)
        self._clock = clock
        self._longest_pause_s = context.lease_s * LONGEST_PAUSE
        self._polled_s = clock()
        self._lent = 0
        self._agent: _LendingAgent | None = None
        self._retired: set[_LendingAgent] = set()  # the poller's thread has it
        self._making: asyncio.Task[bytes] | None = None

    async def endpoint(self) -> bytes:
        making = self._making  # the poller's thread may reset it
        if making is None:
            making = self._making = child(self._make())
        try:
            return await asyncio.shield(making)
        finally:
            failed = making.done() and (making.cancelled() or making.exception() is not None)
            if failed and self._making is making:
                self._making = None  # the next caller tries again

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        if not self._lent:
            self._polled_s = self._clock()
        self._lent += 1
        self._context.poller.wake(self)
        lending, whole = self._agent, False
        if lending is not None:
            lending.loans += 1
        try:
            yield
            whole = True
        finally:
            self._lent -= 1
            if lending is not None:
                lending.loans -= 1
                if not whole or lending.retired:
                    self._context.poller.call(lambda: self._retire(lending))

    def count(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._context.count_sent(segment.kind, wire_bytes(segment, self._context.memory))

    async def close(self) -> None:
        if self._making is not None:
            await asyncio.wait([self._making])
        await self._context.poller.run(self._destroy_all)

    def poll(self) -> Work:
        """Answer readers. Called on the poller's thread."""
        lending = self._agent
        if lending is None:
            return Work.NONE
        now = self._clock()
        if self._lent and now - self._polled_s > self._longest_pause_s:
            log.warning(
                "this worker was suspended for %.1f s while it lent a prefix: its readers must "
                "connect again",
                now - self._polled_s,
            )
            self._retire(lending)
            return Work.NONE
        self._polled_s = now
        lending.agent.notes()  # readers' probes arrive here; they need no answer
        return Work.WAITING if self._lent else Work.NONE

    def fail(self, why: ChannelError) -> None:
        """Take no more loans on the agent. Called on the poller's thread."""
        log.warning("%s", why)
        if self._agent is not None:
            self._retire(self._agent)

    def _retire(self, lending: _LendingAgent) -> None:
        """Take no more loans on the agent, and destroy it once it has none. Called on the poller's
        thread."""
        if self._agent is lending:
            self._agent = self._making = None
        lending.retired = True
        self._retired.add(lending)
        if not lending.loans:
            self._retired.discard(lending)
            lending.agent.close()

    def _destroy_all(self) -> None:
        """Destroy the agent and those retired. Called on the poller's thread."""
        lending, self._agent, self._making = self._agent, None, None
        for one in (*self._retired, *([lending] if lending else ())):
            one.agent.close()
        self._retired.clear()

    async def _make(self) -> bytes:
        spans, devices = self._context.memory.spans, self._context.network.devices
        agent = await asyncio.to_thread(NixlAgent, self._name(), spans, devices)
        self._agent = _LendingAgent(agent)
        return encode_endpoint(agent, spans)
