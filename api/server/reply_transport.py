"""The transport to which one request's reply is written."""

import asyncio
from collections.abc import Callable


class ReplyTransport:
    """A connection's transport as uvicorn's `RequestResponseCycle` uses it, with another end.

    uvicorn closes behind a last reply at once. A client that is still sending its request, as a
    proxy does, would be told that its connection was reset, and might not read the reply.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        """close: called in place of the transport's."""
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
