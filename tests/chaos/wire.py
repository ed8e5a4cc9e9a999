"""The way of bytes into a worker, as a test may hold it up or spoil it: a TCP proxy in the
worker's own process, before its own server."""

import asyncio
import contextlib
import socket

CHUNK = 1 << 16


class Wire:
    """Listens at `address` from the start; `serve` passes on to `target`."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._socket = socket.create_server((self._host, 0))
        self.address = f"{self._host}:{self._socket.getsockname()[1]}"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._spoil = False
        self._held = 0  # chunks that wait

    async def serve(self) -> None:
        self._server = await asyncio.start_server(self._connect, sock=self._socket)

    def hold(self) -> None:
        """Hold back everything that arrives from now on, until `let_go`."""
        self._flowing.clear()

    async def let_go(self) -> None:
        """Returns once all that was held is on its way."""
        self._flowing.set()
        while self._held:
            await asyncio.sleep(0)

    @property
    def holds(self) -> bool:
        return not self._flowing.is_set() and self._held > 0

    def spoil(self) -> None:
        """One bit of the next large chunk."""
        self._spoil = True

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(
            self._pump(reader, there_writer, inward=True),
            self._pump(there_reader, writer, inward=False),
        )

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, inward: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK):
                if inward:
                    data = await self._pass(data)
                sink.write(data)
                await sink.drain()
        sink.close()

    async def _pass(self, data: bytes) -> bytes:
        self._held += 1
        await self._flowing.wait()
        self._held -= 1
        if self._spoil and len(data) > CHUNK // 4:
            self._spoil = False
            at = len(data) // 2
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data
