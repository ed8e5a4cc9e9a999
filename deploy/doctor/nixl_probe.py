"""Starts a NIXL agent on loopback, and prints whether UCX may copy between processes by itself."""

import json
import os
import sys

from baton.core.errors import BatonError
from baton.transfer.channels.nixl import ucx
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import Span


def describe() -> dict[str, object]:
    """Return JSON values: copies, True where UCX joins two processes by the kernel's copies.

    Raises ChannelError or ConfigError where no agent starts.
    """
    NixlAgent("doctor", [Span(address=0, block_bytes=0, blocks=0, device=None)]).close()
    return {"copies": ucx.copies_by_kernel(os.getppid())}


if __name__ == "__main__":
    try:
        print(json.dumps(describe()))
    except BatonError as err:
        sys.exit(str(err))
