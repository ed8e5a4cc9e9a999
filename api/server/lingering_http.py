"""uvicorn's HTTP protocol with an end after which the client may still read its last reply."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_UNREAD = 512 << 10
"""The most bytes that are read and dropped before a connection is closed."""
LINGER_S = 1.0
"""The time in which a client may read a reply that came before its request had ended."""


class LingeringHttp(HttpToolsProtocol):
    """A protocol that may linger: its last reply is written, and what still comes is dropped."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.lingers = False
        self._dropped = 0
        self._linger: asyncio.TimerHandle | None = None

    def drop(self, count: int) -> None:
        """Drop bytes that came while the connection lingers."""
        self._dropped += count
        if self._dropped > MAX_UNREAD:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)

    def linger(self) -> None:
        """Close the connection when the client does, or after `LINGER_S`.

        At once would be too early for a client that is still sending: it would be told that its
        connection was reset, and might not read the reply. TLS waits for the client's word by
        itself, for half a minute.
        """
        self.lingers = True
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.transport.can_write_eof():  # TLS cannot; its client goes by the header
                self.transport.write_eof()
        if self._linger is None:
            self._linger = self.loop.call_later(LINGER_S, self.transport.abort)

    def hang_up(self) -> None:
        """Close a connection that lingers, once the event loop has written its reply and its end: a
        client that has had both loses neither when it is told of a reset later."""
        self.loop.call_soon(self.transport.abort)
