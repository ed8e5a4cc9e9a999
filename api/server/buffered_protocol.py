"""uvicorn's HTTP protocol with a bound on the bytes of one read."""

import asyncio
import contextlib
import os
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

READ_BYTES = 64 << 10
"""The most bytes of one read. The 256 KiB that asyncio and uvloop read by themselves hold the loop
up for 0.1 s where 50 clients begin to send large bodies together."""
MAX_UNREAD = 512 << 10
"""The most bytes that are read and dropped before a connection is closed."""


class BufferedHttp(HttpToolsProtocol, asyncio.BufferedProtocol):
    """A protocol that reads into a buffer, which all connections of an event loop may share."""

    def __init__(self, buffer: memoryview, **given: Any) -> None:
        """buffer: READ_BYTES bytes."""
        super().__init__(**given)
        self.buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer[:nbytes]))

    def drop_unread(self) -> None:
        """Read what has come, unseen: a socket that is closed with unread bytes is reset, and its
        client may lose the reply."""
        number = self.transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):  # nothing more is there
            for _ in range(MAX_UNREAD // READ_BYTES):
                if not os.readv(number, [self.buffer]):
                    break
