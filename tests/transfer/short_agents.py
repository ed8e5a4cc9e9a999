"""A process, otherwise new, in which agents come and go: prints a line with its descriptors and its
threads before them, and one with those after."""

import os

import torch

from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import Span


def main() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    span = Span(memory.data_ptr(), 4096, 1, None)
    NixlAgent("warm", [span]).close()
    tell()
    for number in range(3):
        agent = NixlAgent(f"short-{number}", [span])
        agent.prepare(span, None)
        agent.close()
    tell()


def tell() -> None:
    """Native threads count too."""
    print(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))


if __name__ == "__main__":
    main()
