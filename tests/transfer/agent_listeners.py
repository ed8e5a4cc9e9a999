"""A process with one agent on the devices of argv; none: the default. Prints the addresses at
which it listens, as JSON, or the agent's complaint."""

import json
import sys

import psutil
import torch

from baton.core.errors import ConfigError
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import Span


def main() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    more = (sys.argv[1:],) if sys.argv[1:] else ()
    try:
        agent = NixlAgent("listening", [Span(memory.data_ptr(), 4096, 1, None)], *more)
    except ConfigError as error:
        print(json.dumps(str(error)))
        return
    open_sockets = psutil.Process().net_connections("inet")
    print(json.dumps([s.laddr.ip for s in open_sockets if s.status == psutil.CONN_LISTEN]))
    agent.close()


if __name__ == "__main__":
    main()
