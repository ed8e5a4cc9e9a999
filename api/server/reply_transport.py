"""The transport to which one request's reply is written."""

import asyncio
from collections.abc import Callable


class ReplyTransport:
    """A connection's transport as uvicorn's `RequestResponseCycle` uses it, with another end.

    The first part, a reply's header, is written with the second, its body or first event, if that
    comes in the same turn of the event loop: each write is a system call.

    uvicorn closes behind a last reply at once. A client that is still sending its request, as a
    proxy does, would be told that its connection was reset, and might not read the reply.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        """close: called in place of the transport's."""
        self._write = transport.write
        self._close = close
        self._held: bytes | None = None
        self._begun = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._begun:
            held, self._held = self._held, None
            self._write(data if held is None else held + data)
        else:
            self._begun, self._held = True, data
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._close()

    def _flush(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._write(held)
