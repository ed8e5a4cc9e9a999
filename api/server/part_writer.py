"""The parts of a streamed response, written past uvicorn's `send` and all middleware."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class CyclePartWriter:
    """A `PartWriter` (`api/sse.py`) for one response that has no content length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def paused(self) -> bool:
        return self._flow.write_paused and not self._cycle.disconnected

    async def resumed(self) -> None:
        await self._flow.drain()

    def write(self, part: bytes) -> None:
        """Send a chunk of HTTP/1.1's chunked coding. Raises RuntimeError outside of such a body."""
        cycle = self._cycle
        if cycle.disconnected:
            return
        if not part or not cycle.chunked_encoding or cycle.response_complete:
            raise RuntimeError(
                "a part is no empty one, and goes into a chunked body that has begun"
            )
        self._write(b"%x\r\n%b\r\n" % (len(part), part))
