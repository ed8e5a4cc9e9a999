"""A streaming HTTP client with little CPU use: on two cores its own work affects the results.

It stores received bytes with the time of each read, wakes no task for them, and parses them when
the run is over.
"""

import asyncio
import json
import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.deploy.client.router_client import key_header
from baton.deploy.client.router_options import RouterAddress

_EVENT = re.compile(rb"^data: (\{.*\})\r?$", re.MULTILINE)


class RequestFailed(BatonError):
    """A reply that is not a stream of tokens; the message has the details."""

    code = ErrorCode.UNAVAILABLE


@dataclass(frozen=True)
class StreamedAnswer:
    """One streamed completion. Times in seconds on this process's monotonic clock."""

    sent: float
    token_times: tuple[float, ...]  # when each output token was read
    token_ids: tuple[int, ...]
    cached_tokens: int
    timings: Mapping[str, int]  # the server's own, microseconds

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.sent

    @property
    def itls(self) -> list[float]:
        """Return the gaps between consecutive tokens."""
        return [after - before for before, after in pairwise(self.token_times)]

    @property
    def ended(self) -> float:
        return self.token_times[-1]


class Read(NamedTuple):
    """One read of the socket. A tuple, since one is made for each token."""

    at: float
    data: bytes


@dataclass(frozen=True)
class Exchange:
    """The raw reply to one request."""

    sent: float
    reads: Sequence[Read]

    def answer(self) -> StreamedAnswer:
        """Parse the reply. Raises RequestFailed if it is not a stream of tokens."""
        return _parse(self.sent, self.reads)


async def complete(base_url: str, body: Mapping[str, Any], deadline_s: float) -> StreamedAnswer:
    """POST `body` to /v1/completions with streaming on, and parse. Raises RequestFailed."""
    return (await exchange(RouterAddress(base_url), body, deadline_s)).answer()


async def exchange(server: RouterAddress, body: Mapping[str, Any], deadline_s: float) -> Exchange:
    """POST `body` and return the unparsed reply: parsing would slow other requests down.

    Raises RequestFailed if the connection fails.
    """
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with asyncio.timeout(deadline_s):
            return await _exchange(server, json.dumps(wanted).encode())
    except TimeoutError as err:
        raise RequestFailed(f"no whole answer within {deadline_s:g} s") from err
    except OSError as err:
        raise RequestFailed(f"{server.url}: {err}") from err


class _Reader(asyncio.Protocol):
    """A protocol that stores all reads until the server closes the connection."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.reads.append(Read(time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.done():
            return
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)


async def _exchange(server: RouterAddress, payload: bytes) -> Exchange:
    """Send one request on a connection of its own and read until the server closes it."""
    where = urlsplit(server.url)
    secure = where.scheme == "https"
    context = server.trust() if secure and server.trust is not None else secure or None
    loop = asyncio.get_running_loop()
    transport, reader = await loop.create_connection(
        _Reader, where.hostname or "", where.port or (443 if secure else 80), ssl=context
    )
    headers = {"Content-Type": "application/json", **key_header(server.api_key)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"{lines}Connection: close\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    try:
        sent = time.perf_counter()
        transport.write(head.encode() + payload)
        await reader.closed
        return Exchange(sent, reader.reads)
    finally:
        transport.close()


def _parse(sent: float, reads: Sequence[Read]) -> StreamedAnswer:
    times: list[float] = []
    ids: list[int] = []
    cached = 0
    timings: Mapping[str, int] = {}
    for at, event in _events(reads):
        if "error" in event:
            raise RequestFailed(f"the stream ended with {event['error']}")
        for choice in event.get("choices", ()):
            new = choice.get("token_ids") or ()
            ids += new
            times += [at] * len(new)
        if event.get("usage"):
            cached = event["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        timings = event.get("timings") or timings
    if not times:
        raise RequestFailed("the answer has no tokens")
    return StreamedAnswer(sent, tuple(times), tuple(ids), cached, timings)


def _events(reads: Sequence[Read]) -> list[tuple[float, dict[str, Any]]]:
    """Return each server-sent event with the time of the read that completed it.

    Servers send each event as one HTTP chunk, so chunk sizes stand between events, not in them.
    """
    whole = b"".join(read.data for read in reads)
    ends = list(accumulate(len(read.data) for read in reads))
    head, _, rest = whole.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace")
    if " 200 " not in status:
        detail = rest.decode(errors="replace")[:500]
        raise RequestFailed(f"{status or 'the connection closed before an answer'} {detail}")
    return [
        (reads[bisect_left(ends, match.end())].at, json.loads(match[1]))
        for match in _EVENT.finditer(whole)
    ]
