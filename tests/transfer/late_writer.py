"""A process that writes into its parent's memory for as long as it can: argv is that memory,
address and bytes; the first line of standard input, in hex, is the metadata of the parent's agent.
"""

import contextlib
import sys
import time

import numpy as np
import torch

from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import Span

DEADLINE_S = 120.0


def main() -> None:
    address, size = int(sys.argv[1]), int(sys.argv[2])
    source = torch.full((size,), 7, dtype=torch.uint8)
    span = Span(source.data_ptr(), size, 1, None)
    agent = NixlAgent(f"late-writer-{address}", [span])
    peer = agent.add_peer(bytes.fromhex(sys.stdin.readline()))
    here, there = (np.array([[at, size, 0]], dtype=np.uint64) for at in (span.address, address))
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.suppress(ChannelError):
        while time.monotonic() < deadline:
            write = agent.write_parts(here, there, peer, b"")
            while not agent.done(write) and time.monotonic() < deadline:
                pass


if __name__ == "__main__":
    main()
