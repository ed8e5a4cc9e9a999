"""The description of a NIXL agent that a peer needs to write to its pools, or to read from them."""

from dataclasses import dataclass

from baton.proto import handoff_pb2
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import Span


@dataclass(frozen=True)
class NixlEndpoint:
    """One agent, and the pools that it has registered."""

    agent: str  # its name
    metadata: bytes  # NIXL's own description of it
    spans: tuple[Span, ...]  # of the slots, and of the pages


def encode_endpoint(agent: NixlAgent, spans: tuple[Span, ...]) -> bytes:
    """Describe `agent`, which has registered `spans`, for its peers. Raises ChannelError."""
    return handoff_pb2.NixlEndpoint(
        metadata=agent.metadata,
        agent=agent.name,
        pools=[
            handoff_pb2.MemorySpan(
                address=span.address,
                block_bytes=span.block_bytes,
                blocks=span.blocks,
                device=span.device,
            )
            for span in spans
        ],
    ).SerializeToString()


def decode_endpoint(endpoint: bytes) -> NixlEndpoint:
    """Read what `encode_endpoint` wrote."""
    there = handoff_pb2.NixlEndpoint.FromString(endpoint)
    return NixlEndpoint(there.agent, there.metadata, tuple(_span(pool) for pool in there.pools))


def _span(pool: handoff_pb2.MemorySpan) -> Span:
    device = pool.device if pool.HasField("device") else None
    return Span(pool.address, pool.block_bytes, pool.blocks, device)
