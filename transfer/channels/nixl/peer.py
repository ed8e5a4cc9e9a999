"""An agent with its peer's pools: used to write to them and to read from them."""

from collections.abc import Iterator, Sequence

from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl import staging
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.crossing import Crossing, check_pools
from baton.transfer.channels.nixl.endpoint import NixlEndpoint
from baton.transfer.channels.nixl.plan import SLOTS, Cut, cut, wire_bytes
from baton.transfer.channels.nixl.probe import Probe, tell_rate
from baton.transfer.channels.nixl.runs import POOLS_A_RANK
from baton.transfer.channels.nixl.scattering import StagedRead
from baton.transfer.channels.nixl.staging import Bytes, Staging
from baton.transfer.channels.trusted_network import LOOPBACK
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import EngineMemory, Memory, Span
from baton.transfer.memory.segments import Kind, Segment, cut_kv, nbytes


class NixlPeer:
    """An agent that has reached its peer once, with the pools of both prepared."""

    def __init__(
        self, name: str, memory: Memory, there: NixlEndpoint, devices: Sequence[str]
    ) -> None:
        """Connect to `there` and write probes. Blocks for a few seconds. Raises ChannelError."""
        check_pools(memory, there.spans, there.agent)
        self.ours = memory.spans
        self.theirs = there.spans
        self._memory = memory
        self._crossing = None
        self._staging = None
        self._staged: dict[int, StagedRead] = {}  # of reads into buffers, by number
        self._read_bytes: dict[int, int] = {}  # of all reads, by number
        spans = self.ours
        if len(self.ours) + len(self.theirs) > 2 * POOLS_A_RANK:
            self._crossing = Crossing(memory, there.spans)
            equal = len(self.ours) == len(self.theirs)
            if not equal and all(span.device is None for span in spans):
                self._staging = Staging(staging.BUFFER_BYTES, staging.BUFFERS)
                spans = (*spans, self._staging.span)
        self.agent = NixlAgent(name, spans, devices)
        try:
            self._peer = self.agent.add_peer(there.metadata)
            self._sources = [self._prepare(span, None) for span in self.ours]
            self._targets = [self._prepare(span, self._peer) for span in self.theirs]
            self._probe(there.agent, devices)
        except ChannelError:
            self.agent.close()
            raise

    @property
    def full(self) -> bool:
        """True while nothing can be posted, because what was posted has not ended."""
        return self._staging is not None and self._staging.full

    def parts(self, segment: Segment) -> Iterator[Segment]:
        """Yield the parts in which a segment is read fastest."""
        if self._staging is None or segment.kind is not Kind.KV:
            yield segment
            return
        limit = self._staging.buffer_bytes
        yield from cut_kv(self._memory.pages, segment.start, segment.end, limit, segment.layers)

    def segment_limit(self, limit: int) -> int:
        """Return the payload bytes of a segment, of at most `limit`, that is written fastest."""
        return limit if self._staging is None else min(limit, self._staging.buffer_bytes)

    def wire_bytes(self, segment: Segment) -> int:
        """Return the bytes of a write."""
        if self._crossing is not None:
            return self._crossing.written_bytes(segment)
        return wire_bytes(segment, self._memory)

    def post(self, segment: Segment, source: StateRef, target: StateRef, note: bytes) -> int:
        """Post a write from our `source` to the peer's `target`. Returns its number."""
        agent = self.agent
        if self._crossing is not None:
            buffer = self._buffer(segment)
            sides = self._crossing.written(segment, source, target, buffer)
            write = agent.write_parts(*sides, self._peer, note)
            if self._staging is not None and buffer is not None:
                self._staging.hold(write)
            return write
        part = self._cut(segment)
        pool = part.pool
        if part.blocks:
            ours, theirs = self._sources[pool], self._targets[pool]
            return agent.write_blocks(ours, part.ids(source), theirs, part.ids(target), note)
        return agent.write_parts(
            part.parts(source, self.ours[pool]),
            part.parts(target, self.theirs[pool]),
            self._peer,
            note,
        )

    def ended(self, post: int) -> int:
        """Bring what a read has left in a buffer to its place, and free what a write or a read has
        used, once it has ended. Returns the bytes of a read on their way, 0 of a write."""
        nbytes = self._read_bytes.pop(post, 0)
        if self._staging is None:
            return nbytes
        staged, buffer = self._staged.pop(post, None), self._staging.held(post)
        if staged is not None and buffer is not None and self._crossing is not None:
            self._crossing.landed(staged, buffer)
        self._staging.free(post)
        return nbytes

    def fetch(self, segment: Segment, into: StateRef, source: StateRef) -> int:
        """Post a read from the peer's `source` into our `into`. Returns its number. The bytes are
        in their place after `ended`."""
        agent = self.agent
        if self._crossing is not None:
            buffer = self._buffer(segment)
            staged = self._crossing.fetched(segment, into, source, buffer)
            read = agent.read_parts(staged.ours, staged.theirs, self._peer)
            self._read_bytes[read] = staged.nbytes
            if self._staging is not None and buffer is not None:
                self._staging.hold(read)
                self._staged[read] = staged
            return read
        part = self._cut(segment)
        pool = part.pool
        if part.blocks:
            ours, theirs = self._sources[pool], self._targets[pool]
            read = agent.read_blocks(ours, part.ids(into), theirs, part.ids(source))
        else:
            here = part.parts(into, self.ours[pool])
            read = agent.read_parts(here, part.parts(source, self.theirs[pool]), self._peer)
        self._read_bytes[read] = part.nbytes
        return read

    def _buffer(self, segment: Segment) -> Bytes | None:
        """Return where to put a segment together, or None where each of its runs is written. A
        state's tensors are few runs wherever they are cut."""
        if self._staging is None or segment.kind is not Kind.KV:
            return None
        fits = nbytes(segment, self._memory.pages) <= self._staging.buffer_bytes
        return self._staging.next if fits else None

    def _cut(self, segment: Segment) -> Cut:
        assert isinstance(self._memory, EngineMemory)  # others cross
        return cut(segment, self._memory)

    def _prepare(self, span: Span, peer: str | None) -> int:
        """Prepare a pool. Returns -1 for one without bytes, which is never written or read."""
        return self.agent.prepare(span, peer) if span.nbytes else -1

    def _probe(self, peer: str, devices: Sequence[str]) -> None:
        """Write into the padding block of each of the peer's pools, which is never read, and wait
        until it ends; between GPUs measure how fast. UCX tells nobody when it goes through the
        host's memory. The first write to a pool of another process on the GPU maps it, which took
        0.8 s of the first request's time on an H200.
        """
        pairs = [(self.ours[at % POOLS_A_RANK], pool) for at, pool in enumerate(self.theirs)]
        probes = [
            Probe(self.agent, self._peer, ours, theirs)
            for ours, theirs in pairs
            if ours.nbytes and theirs.nbytes
        ]
        for probe in probes:
            probe.reach(peer)
        if self.ours[SLOTS].device is None or self.theirs[SLOTS].device is None:
            return
        rate = probes[0].bytes_per_s(peer)
        if rate is not None:
            tell_rate(peer, rate, one_host=set(devices) == {LOOPBACK})
