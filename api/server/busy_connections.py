"""The gRPC connections on which clients have calls."""

from collections import Counter

from baton.api.access.client_limits import client_of
from baton.api.access.key_guesses import address_of_peer
from baton.api.errors import too_many
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


class BusyConnections:
    """The connections with open calls, by client. A connection is a peer as gRPC spells it."""

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

    def begin(self, peer: str) -> None:
        """Record that a call has begun."""
        if peer not in self._calls:
            self._connections[_client(peer)] += 1
        self._calls[peer] += 1

    def end(self, peer: str) -> None:
        """Record that a call has ended."""
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]
            client = _client(peer)
            self._connections[client] -= 1
            if not self._connections[client]:
                del self._connections[client]


def _client(peer: str) -> str:
    return client_of(address_of_peer(peer))
