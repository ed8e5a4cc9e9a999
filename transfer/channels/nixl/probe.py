"""Probes of the way to a peer: do bytes arrive, and how fast between two GPUs."""

import logging
import time
from collections.abc import Callable

import numpy as np

from baton.transfer.channels.frames import PROBE
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import Span

log = logging.getLogger(__name__)

REACH_BYTES = 64
REACH_S = 5.0
RATE_BYTES = 16 << 20
LEAST_BLOCK = 16 << 10
"""Bytes of a block below which a probe of RATE_BYTES would measure the cost of its many parts."""
SLOW = 5e9
"""Bytes a second. UCX reaches 0.3e9 between GPUs of one host where it must go through the host's
memory and TCP, and over 20e9 by any direct way (github.com/ai-dynamo/nixl/issues/1754)."""
_LOOK_S = 2e-5


class Probe:
    """Writes into the peer's padding block, which nobody reads."""

    def __init__(
        self,
        agent: NixlAgent,
        peer: str,
        source: Span,
        target: Span,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """peer: its name, as `agent` knows it. source, target: pools that have bytes."""
        self._agent = agent
        self._peer = peer
        self._source, self._target = source, target
        self._block = min(source.block_bytes, target.block_bytes)
        self._clock = clock

    def reach(self, name: str) -> None:
        """Write a few bytes and wait until they are there. Raises ChannelError after REACH_S.

        name: what the error calls the peer.
        """
        self._write(min(REACH_BYTES, self._block), 1, name)

    def bytes_per_s(self, name: str) -> float | None:
        """Measure the bandwidth with RATE_BYTES. Returns None for pools whose blocks are too small.

        The way must have been reached: the first write connects. Raises ChannelError.
        """
        if self._block < LEAST_BLOCK:
            return None
        size = min(self._block, RATE_BYTES)
        count = RATE_BYTES // size
        began = self._clock()
        self._write(size, count, name)
        return size * count / max(self._clock() - began, 1e-9)

    def _write(self, size: int, count: int, name: str) -> None:
        """Write the padding block's first `size` bytes, `count` times."""
        source, target = (
            np.array([(span.address, size, span.device or 0)] * count, dtype=np.uint64)
            for span in (self._source, self._target)
        )
        write = self._agent.write_parts(source, target, self._peer, PROBE)
        deadline = time.monotonic() + REACH_S
        while not self._agent.done(write):
            if time.monotonic() > deadline:
                raise ChannelError(
                    f"nixl cannot reach {name}: a probe of {size * count} bytes was not there "
                    f"after {REACH_S:g} s; check UCX_TLS and the network between the two workers"
                )
            time.sleep(_LOOK_S)


def tell_rate(name: str, bytes_per_s: float, *, one_host: bool) -> None:
    """Log the bandwidth to a peer's GPU; warn where two GPUs of one host have no direct way."""
    told = f"nixl writes to {name} at {bytes_per_s / 1e9:.1f} GB/s"
    if not one_host or bytes_per_s >= SLOW:
        log.info("%s", told)
        return
    log.warning(
        "%s, which is as slow as through the host's memory: GPUs of one host should reach over "
        "%g GB/s. Start both workers in one pid namespace, leave UCX_TLS unset or add cuda_ipc "
        "to it, take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, and compare `nvidia-smi "
        "topo -p2p r`; UCX_PROTO_INFO=used tells what UCX chose",
        told,
        SLOW / 1e9,
    )
