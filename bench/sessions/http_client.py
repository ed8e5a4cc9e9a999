"""An HTTP client of keep-alive connections that takes little of the cores that it measures."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop

from baton.bench.cluster.stream_client import RequestFailed
from baton.bench.contract import percentile
from baton.deploy.client.router_client import key_header
from baton.deploy.client.router_options import RouterAddress

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Replies:
    """The times of requests that were all answered."""

    latencies_s: Sequence[float]
    seconds: float  # from the first request to the last reply

    @property
    def requests_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def ms(self, share: float) -> float:
        """Return a percentile of the latencies. share: 0 to 1."""
        return 1000 * percentile(self.latencies_s, share)


def post_all(
    url: str, bodies: Sequence[bytes], connections: int, proof: RouterAddress | None = None
) -> Replies:
    """POST JSON bodies to `url`, over so many connections, each with one request at a time.

    proof: the key that opens the server, and whom to trust over TLS; None: it needs neither.

    Raises RequestFailed for any reply but 200, and after `DEADLINE_S`.
    """

    async def run() -> Replies:
        where, left = urlsplit(url), iter(bodies)
        latencies: list[float] = []
        loop = asyncio.get_running_loop()
        opened: list[_Poster] = []
        named = key_header("" if proof is None else proof.api_key) | {"Host": where.netloc}
        lines = [f"POST {where.path} HTTP/1.1", *(f"{name}: {named[name]}" for name in named), ""]
        head = "\r\n".join(lines).encode()
        context = proof.trust() if proof is not None and proof.trust is not None else None
        try:
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(connections):
                    host, port = where.hostname or "", where.port or 80
                    opened.append(
                        (await loop.create_connection(_Poster, host, port, ssl=context))[1]
                    )
                began = time.perf_counter()
                await asyncio.gather(*(each.run(head, left, latencies) for each in opened))
        except (TimeoutError, OSError) as error:
            raise RequestFailed(f"{url}: {error or 'no answer in time'}") from error
        finally:
            await asyncio.gather(*(each.close() for each in opened))
        return Replies(latencies, time.perf_counter() - began)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


class _Poster(asyncio.Protocol):
    """One connection. It sends the next request when it has read a whole reply."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self._bodies: Iterator[bytes] = iter(())
        self._latencies: list[float] = []
        self._sent = 0.0
        self._read = b""
        self._transport: asyncio.Transport | None = None

    async def run(self, head: bytes, bodies: Iterator[bytes], latencies: list[float]) -> None:
        """Send bodies until there are no more, and add each one's latency."""
        self._head, self._bodies, self._latencies = head, bodies, latencies
        if self._transport is not None:
            self._next()
        await self._over

    async def close(self) -> None:
        """Close the connection, and wait for its end."""
        if self._transport is not None:
            self._transport.abort()
        await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed.set_result(None)
        if not self._over.done():
            self._over.set_exception(error or ConnectionResetError("the server closed"))

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        if not found or not _whole(head.lower(), rest):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            shown = self._read[:500].decode(errors="replace")
            self._over.set_exception(RequestFailed(f"not 200: {shown}"))
            return
        self._latencies.append(time.perf_counter() - self._sent)
        self._read = b""
        self._next()

    def _next(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            self._over.set_result(None)
            return
        assert self._transport is not None
        more = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._sent = time.perf_counter()
        self._transport.write(self._head + more + body)


def _whole(head: bytes, rest: bytes) -> bool:
    """Return True if a reply has been read to its end."""
    _, found, length = head.partition(b"content-length:")
    if found:
        return len(rest) >= int(length.split(b"\r\n", 1)[0])
    return rest.endswith(b"0\r\n\r\n")
