"""The listening socket of the HTTP server.

uvicorn lets asyncio accept. That accepts all that wait at once, so a burst of clients could take
every file descriptor of the process, and it counts a connection only after its TLS handshake. Here
each connection has a place in the table before anything else is done for it.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from baton.api.access.client_limits import Refusal
from baton.api.server.connection_table import PLACE_S, Connection, ConnectionTable
from baton.api.server.handshake_turns import HandshakeTurns
from baton.core.supervised import child

log = logging.getLogger(__name__)

A_TURN = 16
"""Connections that are accepted before other work of the event loop is done. Those that give way to
them are closed by that work, so they need descriptors meanwhile."""
PAUSE_S = 0.1
"""The pause after an accept for which the process had no descriptor or memory."""
GIVES_WAY = 16
"""Idle connections that are then closed."""
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

MakeProtocol = Callable[[Connection], asyncio.BaseProtocol]


class Acceptor:
    """Accepts connections on `listener`; has the methods of `asyncio.Server` that uvicorn calls."""

    def __init__(
        self,
        listener: socket.socket,
        table: ConnectionTable,
        make_protocol: MakeProtocol,
        handshake_s: float,
        tls: ssl.SSLContext | None = None,
        turns: HandshakeTurns | None = None,
    ) -> None:
        """handshake_s: the deadline of a TLS client's first bytes, and then of its handshake. tls:
        None serves plain text. turns: None has the usual number at once."""
        self._listener = listener
        self._table = table
        self._make_protocol = make_protocol
        self._handshake_s = handshake_s
        self._tls = tls
        self._turns = turns or HandshakeTurns()
        self._opening: set[asyncio.Task[bool]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def pause(self) -> None:
        """Stop accepting."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        if self._resume is not None:
            self._resume.cancel()

    def close(self) -> None:
        """Stop accepting, and end the handshakes. The caller closes the socket."""
        self.pause()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(A_TURN):
            if not self._table.has_place():
                self._wait(PLACE_S)
                return
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                self._pause()
                return
            self._admit(accepted, address[0])

    def _admit(self, accepted: socket.socket, address: str) -> None:
        place = self._table.opened(address)
        accepted.setblocking(False)
        place.has_sent = partial(_has_unread, accepted)
        task = child(self._serve(accepted, place))
        place.drop = task.cancel
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, accepted, place))

    def _opened(self, accepted: socket.socket, place: Connection, task: asyncio.Task[bool]) -> None:
        """Close what has found no protocol. A task that is cancelled before its first step runs
        none of its own code, so this is not in `_serve`."""
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a connection could not be served", exc_info=error)
        if task.cancelled() or error is not None or not task.result():
            self._table.closed(place)
            accepted.close()

    async def _serve(self, accepted: socket.socket, place: Connection) -> bool:
        """Make the connection's protocol, after the TLS handshake if there is one. Return False
        where that failed."""
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                await self._loop.connect_accepted_socket(
                    partial(self._make_protocol, place), accepted
                )
            else:
                await self._shake_hands(accepted, place, self._tls)
        except OSError:  # it left, or its handshake failed or took too long
            self._table.refused(Refusal.HANDSHAKE)
            return False
        return True

    async def _shake_hands(
        self, accepted: socket.socket, place: Connection, tls: ssl.SSLContext
    ) -> None:
        """Do a TLS handshake in its turn, which who says nothing does not have. The wait for it is
        not the client's fault: its time begins with the turn."""
        async with asyncio.timeout(self._handshake_s):
            await self._readable(accepted)
        async with self._turns.turn(place.client):
            self._table.opening(place)
            await self._loop.connect_accepted_socket(
                partial(self._make_protocol, place),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_s,
            )

    async def _readable(self, accepted: socket.socket) -> None:
        """Wait until bytes have come, or the end."""
        heard = asyncio.Event()
        self._loop.add_reader(accepted.fileno(), heard.set)
        try:
            await heard.wait()
        finally:
            self._loop.remove_reader(accepted.fileno())

    def _pause(self) -> None:
        """Stop to accept for a moment: the socket stays readable, and would be tried for ever."""
        self._table.refused(Refusal.DESCRIPTORS)
        for _ in range(GIVES_WAY):
            self._table.make_room(Refusal.DESCRIPTORS)
        log.warning("no descriptor or memory for a connection; the next try is in %g s", PAUSE_S)
        self._wait(PAUSE_S)

    def _wait(self, pause_s: float) -> None:
        """Leave new connections to the kernel for a moment."""
        self._loop.remove_reader(self._listener.fileno())
        self._resume = self._loop.call_later(pause_s, self.start)


def _has_unread(connection: socket.socket) -> bool:
    """Return True if bytes have come that nobody has read."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # nothing, or it is closed
        return False
