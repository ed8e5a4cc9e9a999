"""The control store of a Ray that somebody else runs, as its port answers."""

import socket
import threading
import time
from collections.abc import Callable

SILENT_S = 3.0
"""The time without an answer after which the operator is told."""
LOST_S = 40.0
"""The time after which the store counts as lost. Ray itself waits for 60 s, in which an operator
who keeps Ray's state in Redis may start the store again."""
LOOK_S = 1.0
_DIAL_S = 1.0


class ControlStore:
    """A store that is asked for a connection every now and then. It is never called: a call waits
    for a lost store for a minute.

    Methods may be called on any thread.
    """

    def __init__(
        self,
        address: str,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        dial: Callable[[str], None] | None = None,
    ) -> None:
        """address: host:port. tell: takes a line for the operator. dial: opens a connection to an
        address and closes it, or raises OSError; None: does so by TCP.
        """
        self._address = address
        self._dial = dial or dial_tcp
        self._name = f"control store at {address}"
        self._tell = tell
        self._clock = clock
        self._answered = self._looked = clock()
        self._told = False
        self._lock = threading.Lock()

    def lost(self) -> str:
        """Name the store once it has been silent for `LOST_S`; empty before, and while it answers.

        Waits a second at most.
        """
        with self._lock:
            now = self._clock()
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._look(now)
            return self._name if now - self._answered >= LOST_S else ""

    def kill(self) -> None:
        """Leave it: its operator ends it."""

    def _look(self, now: float) -> None:
        try:
            self._dial(self._address)
        except OSError as err:
            if now - self._answered >= SILENT_S and not self._told:
                self._told = True
                left = LOST_S - (now - self._answered)
                self._tell(
                    f"Ray's {self._name} does not answer ({err}). Requests go on meanwhile; the "
                    f"cluster ends in {max(left, 0.0):.0f} s unless it answers again"
                )
            return
        self._answered = now
        if self._told:
            self._told = False
            self._tell(f"Ray's {self._name} answers again")


def dial_tcp(address: str) -> None:
    """Open a connection to host:port and close it. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
