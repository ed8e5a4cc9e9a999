"""A bound on the bytes of one read."""

import asyncio

READ_BYTES = 64 << 10
"""The most bytes of one read. The 256 KiB that asyncio and uvloop read by themselves hold the loop
up for 0.1 s where 50 clients begin to send large bodies together."""


class BufferedReads(asyncio.BufferedProtocol):
    """Reads of a connection, for its protocol, into a buffer that all connections of a loop share.

    An object of its own: uvloop reads as it likes for whatever is an `asyncio.Protocol`.
    """

    def __init__(self, protocol: asyncio.Protocol, buffer: memoryview) -> None:
        """buffer: READ_BYTES bytes."""
        self._buffer = buffer
        self._data_received = protocol.data_received
        self.connection_made = protocol.connection_made  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data_received(bytes(self._buffer[:nbytes]))
