"""A TCP connection that a test can cut, or leave open and silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.proto import common_pb2


class Proxy:
    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    def freeze(self) -> None:
        """Stop passing bytes in either direction, without telling either side."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Every connection is reset. New ones pass."""
        for writer in self._writers:
            writer.transport.abort()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._tasks.append(asyncio.ensure_future(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def proxied(
    peer: common_pb2.WorkerIdentity,
) -> AsyncIterator[tuple[Proxy, common_pb2.WorkerIdentity]]:
    """`peer` as it looks through a proxy."""
    proxy = Proxy(peer.address)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    seen = common_pb2.WorkerIdentity()
    seen.CopyFrom(peer)
    seen.address = address
    try:
        yield proxy, seen
    finally:
        proxy.close()
        server.close()
