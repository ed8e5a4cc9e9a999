"""A router with a rank, in a process that may open few files. Run by `test_few_files.py`."""

import asyncio
import resource
import sys
from pathlib import Path

import uvloop
from fake_workers import FakeRank, FakeWorker, tokens_of
from router_neighbours import Cluster

from baton.api.server import client_guard


async def serve(folder: Path) -> None:
    """Print the addresses once requests can be answered, then serve until a line comes."""
    async with Cluster(folder) as cluster:
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [20], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        print(cluster.started.http_address, cluster.started.grpc_address, flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    files = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if "unbounded" in sys.argv:  # let the process run out of descriptors
        client_guard.RESERVE = -100_000
    uvloop.run(serve(Path(sys.argv[1])))
