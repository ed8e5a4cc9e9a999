"""An agent with its peer's pools: used to write to them and to read from them."""

import time
from collections.abc import Sequence

import numpy as np

from baton.transfer.channels.frames import PROBE
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.endpoint import NixlEndpoint
from baton.transfer.channels.nixl.plan import PAGES, SLOTS, Cut
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import EngineMemory, Holder, Span

PROBE_BYTES = 64
PROBE_S = 5.0


class NixlPeer:
    """An agent that has reached its peer once, with the pools of both prepared."""

    def __init__(
        self, name: str, memory: EngineMemory, there: NixlEndpoint, devices: Sequence[str]
    ) -> None:
        """Connect to `there` and write a probe. Blocks for up to PROBE_S. Raises ChannelError."""
        self.ours = memory.spans
        self.theirs = there.spans
        if [s.block_bytes for s in self.ours] != [s.block_bytes for s in self.theirs]:
            raise ChannelError(
                f"the blocks of {there.agent} have other sizes than this worker's",
                expected=str([s.block_bytes for s in self.ours]),
                actual=str([s.block_bytes for s in self.theirs]),
            )
        self.agent = NixlAgent(name, self.ours, devices)
        try:
            self._peer = self.agent.add_peer(there.metadata)
            self._sources = [self._prepare(span, None) for span in self.ours]
            self._targets = [self._prepare(span, self._peer) for span in self.theirs]
            self._probe(there.agent)
        except ChannelError:
            self.agent.close()
            raise

    def post(self, part: Cut, source: Holder, target: Holder, note: bytes) -> int:
        """Post a write from our `source` to the peer's `target`. Returns its number."""
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
        """Post a read from the peer's `source` into our `into`. Returns its number."""
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
        """Prepare a pool. Returns -1 for one without bytes, which is never written or read."""
        return self.agent.prepare(span, peer) if span.nbytes else -1

    def _probe(self, peer: str) -> None:
        """Write into the peer's padding block, which is never read, and wait until it ends."""
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
