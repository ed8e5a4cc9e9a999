"""The order in which TLS handshakes are served.

A handshake takes about a millisecond of this process's work, and as much of its client's. If all of
a burst began together, all would be over late and at the same time: the first would wait for the
last. So only some are under way at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

AT_ONCE = 32
"""Handshakes under way at once, of all clients."""
TURN_S = 0.25
"""The time for which a handshake counts as under way. It may go on, but one whose client says no
more holds up nobody for longer."""


class HandshakeTurns:
    """The handshakes that are under way and those that wait. The clients take turns, and of each
    client the handshake that came first is next."""

    def __init__(self, at_once: int = AT_ONCE, turn_s: float = TURN_S) -> None:
        self._at_once = at_once
        self._turn_s = turn_s
        self._under_way: set[asyncio.Future[None]] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client, the next one first

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it until the context ends, for `turn_s` at most."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._begin()
        try:
            await turn
            over = loop.call_later(self._turn_s, partial(self._end, turn))
            try:
                yield
            finally:
                over.cancel()
        finally:
            self._end(turn)

    def _begin(self) -> None:
        """Give free turns to those that still wait."""
        while self._waiting and len(self._under_way) < self._at_once:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            turn = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind the others
            if not turn.done():  # its task may have been cancelled
                self._under_way.add(turn)
                turn.set_result(None)

    def _end(self, turn: asyncio.Future[None]) -> None:
        """End a turn. Idempotent."""
        self._under_way.discard(turn)
        self._begin()
