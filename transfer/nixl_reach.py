"""One writer's agent and its peer's pools: what it takes to write there, tried once."""

import time

import numpy as np

from baton.proto import handoff_pb2
from baton.transfer.errors import ChannelError
from baton.transfer.frames import PROBE
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_plan import PAGES, SLOTS, Cut
from baton.transfer.regions import EngineMemory, Holder, Span

PROBE_BYTES = 64
PROBE_S = 5.0


class Reach:
    """An agent that has written to its peer: the pools of both, prepared."""

    def __init__(self, name: str, memory: EngineMemory, there: handoff_pb2.NixlEndpoint) -> None:
        """Blocks for up to PROBE_S. Raises ChannelError."""
        self.ours = memory.spans
        self.theirs = tuple(_span(pool) for pool in there.pools)
        if [s.block_bytes for s in self.ours] != [s.block_bytes for s in self.theirs]:
            raise ChannelError(
                f"{there.agent} has blocks of other sizes",
                expected=str([s.block_bytes for s in self.ours]),
                actual=str([s.block_bytes for s in self.theirs]),
            )
        self.agent = NixlAgent(name, self.ours)
        try:
            self._peer = self.agent.add_peer(there.metadata)
            self._sources = [self._prepare(span, None) for span in self.ours]
            self._targets = [self._prepare(span, self._peer) for span in self.theirs]
            self._probe(there.agent)
        except ChannelError:
            self.agent.close()
            raise

    def post(self, part: Cut, source: Holder, target: Holder, note: bytes) -> int:
        """The write's number."""
        pool, agent = part.pool, self.agent
        if part.blocks:
            ours, theirs = self._sources[pool], self._targets[pool]
            return agent.write_blocks(ours, part.ids(source), theirs, part.ids(target), note)
        return agent.write_parts(
            part.parts(source, self.ours[pool]),
            part.parts(target, self.theirs[pool]),
            self._peer,
            note,
        )

    def fetch(self, part: Cut, into: Holder, source: Holder) -> int:
        """From the peer's `source` to our `into`. The read's number."""
        pool, agent = part.pool, self.agent
        if part.blocks:
            ours, theirs = self._sources[pool], self._targets[pool]
            return agent.read_blocks(ours, part.ids(into), theirs, part.ids(source))
        return agent.read_parts(
            part.parts(into, self.ours[pool]),
            part.parts(source, self.theirs[pool]),
            self._peer,
        )

    def _prepare(self, span: Span, peer: str | None) -> int:
        """-1 for a pool without bytes: nothing is written into it."""
        return self.agent.prepare(span, peer) if span.nbytes else -1

    def _probe(self, peer: str) -> None:
        """Writes into the peer's padding block, which is never read, and waits for the end."""
        pool = SLOTS if self.ours[SLOTS].nbytes else PAGES
        rows = [
            (span.address, min(PROBE_BYTES, span.block_bytes), span.device or 0)
            for span in (self.ours[pool], self.theirs[pool])
        ]
        source, target = (np.array([row], dtype=np.uint64) for row in rows)
        write = self.agent.write_parts(source, target, self._peer, PROBE)
        deadline = time.monotonic() + PROBE_S
        while not self.agent.done(write):
            if time.monotonic() > deadline:
                raise ChannelError(
                    f"nixl cannot reach {peer}: a probe of {PROBE_BYTES} bytes was not there after "
                    f"{PROBE_S:g} s; check UCX_TLS and the network between the two workers"
                )
            time.sleep(1e-4)


def to_proto(span: Span) -> handoff_pb2.MemorySpan:
    return handoff_pb2.MemorySpan(
        address=span.address,
        block_bytes=span.block_bytes,
        blocks=span.blocks,
        device=span.device,
    )


def _span(pool: handoff_pb2.MemorySpan) -> Span:
    device = pool.device if pool.HasField("device") else None
    return Span(pool.address, pool.block_bytes, pool.blocks, device)
