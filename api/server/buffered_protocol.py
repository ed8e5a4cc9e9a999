"""uvicorn's HTTP protocol with a bound on the bytes of one read."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

READ_BYTES = 64 << 10
"""The most bytes of one read. The 256 KiB that asyncio and uvloop read by themselves hold the loop
up for 0.1 s where 50 clients begin to send large bodies together."""
MAX_UNREAD = 512 << 10
"""The most bytes that are read and dropped before a connection is closed."""
LINGER_S = 1.0
"""The time in which a client may read a reply that came before its request had ended."""


class BufferedHttp(HttpToolsProtocol, asyncio.BufferedProtocol):
    """A protocol that reads into a buffer, which all connections of an event loop may share."""

    def __init__(self, buffer: memoryview, **given: Any) -> None:
        """buffer: READ_BYTES bytes."""
        super().__init__(**given)
        self.buffer = buffer
        self.lingers = False
        """The last reply is written; what still comes is dropped."""
        self._dropped = 0
        self._linger: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self.lingers:
            self.data_received(bytes(self.buffer[:nbytes]))
            return
        self._dropped += nbytes
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
