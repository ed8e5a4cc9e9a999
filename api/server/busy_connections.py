"""The gRPC connections on which calls of clients are answered."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from baton.api.access.client_limits import client_of
from baton.api.access.key_guesses import address_of_peer
from baton.api.errors import too_many
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


class BusyConnections:
    """The connections with such calls, by client. A connection is a peer as gRPC spells it. Those
    with idle calls alone (`IdleCalls`) are not among them: they are closed where there are too
    many."""

    def __init__(self, most_of_client: int) -> None:
        self.most_of_client = most_of_client
        self._calls: Counter[str] = Counter()  # by connection
        self._connections: Counter[str] = Counter()  # by client

    def __contains__(self, peer: str) -> bool:
        return peer in self._calls

    @property
    def peers(self) -> frozenset[str]:
        return frozenset(self._calls)

    def refusal(self, peer: str) -> ApiError | None:
        """Return the error for a call on this connection, or None if it may begin."""
        busy = self._connections[_client(peer)]
        if peer in self._calls or busy < self.most_of_client:
            return None
        return too_many(
            ErrorCode.OVERLOADED,
            f"this address has {busy} connections with calls",
            f"{self.most_of_client} connections",
        )

    @contextmanager
    def counted(self, peer: str) -> Iterator[None]:
        """Count a call on this connection while it is open."""
        client = _client(peer)
        if peer not in self._calls:
            self._connections[client] += 1
        self._calls[peer] += 1
        try:
            yield
        finally:
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]
                self._connections[client] -= 1
                if not self._connections[client]:
                    del self._connections[client]


def _client(peer: str) -> str:
    return client_of(address_of_peer(peer))
