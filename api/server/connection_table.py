"""The open HTTP connections, how many there may be, and which one gives way to a new one."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from baton.api.access.client_limits import ClientLimits, Refusal, client_of
from baton.api.access.client_metrics import ClientMetrics
from baton.api.errors import too_many
from baton.api.server.buffered_protocol import READ_BYTES
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

SHED = 32
"""Connections beyond the limit that are accepted to say so, and for `/health`."""
GRACE_S = 0.25
"""The time in which a connection may begin a request before it gives way to a new one."""
LINGERING = 16
"""Connections that have given way and may still read why. They need descriptors meanwhile."""
OPENING_S = 3.0
"""The time that a client may leave its TLS handshake where it is before that gives way, and then to
a request alone: in a burst, clients are busy too, and who gives way here cannot be told why."""
PLACE_S = 0.01
"""The pause before another try where all places are taken by clients that had no time to send a
request."""
_LOOKED_AT = 16
"""Connections that are asked whether they have sent something, at most, for one that gives way."""


class Guarded(Protocol):
    """The protocol that serves a connection, once its handshake is over."""

    def check(self) -> None:
        """End the connection if one of its deadlines has passed."""
        ...

    def is_writing(self) -> bool:
        """Return True while the client has not read its last answer."""
        ...

    def hang_up(self) -> None:
        """Close a connection that has given way and waits until its client has read why."""
        ...


@dataclass(eq=False)
class Connection:
    """One accepted connection."""

    client: str  # as `client_of` returns it
    since: float  # when it was accepted, its handshake began or ended, or its last answer ended
    drop: Callable[[], object] = lambda: None  # closes it at once; set when it is accepted
    has_sent: Callable[[], bool] = lambda: False  # bytes wait to be read; set with `drop`
    served_by: Guarded | None = None  # set when its handshake is over
    shed: ApiError | None = None  # the answer to its request, unless that is for health


@dataclass(eq=False)
class _Client:
    """The connections of one address."""

    open: int = 0
    placed: int = 0  # of them, those that are not beyond a limit
    idle: "OrderedDict[Connection, None]" = field(default_factory=OrderedDict)
    """Those with a place and without a request, longest idle first."""
    surplus: "OrderedDict[Connection, None]" = field(default_factory=OrderedDict)
    """Those beyond a limit that have asked nothing yet, oldest first."""

    def without_request(self, connection: Connection) -> "OrderedDict[Connection, None]":
        """Return where a connection is kept while it has no request."""
        return self.idle if connection.shed is None else self.surplus


class ConnectionTable:
    """All connections of one HTTP server.

    At a limit, a new connection takes the place of one without a request that had `GRACE_S` to
    begin one: the requests of a burst are on their way when it is accepted. It is one of the same
    client where the client's limit is reached, else one of the client that has the most such
    connections: who opens many loses theirs first.
    """

    def __init__(
        self,
        limits: ClientLimits,
        most: int,
        metrics: ClientMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """most: connections at once; `limits.connections`, or fewer where files are scarce."""
        self._most = most
        self._most_of_client = limits.of_client(most)
        self._metrics = metrics
        self._clock = clock
        self._open: set[Connection] = set()
        self._placed = 0  # of them, those that are not beyond a limit
        self._lingering: dict[Connection, Guarded] = {}  # the longest first
        self._clients: dict[str, _Client] = {}
        self.buffer = memoryview(bytearray(READ_BYTES))
        """The place of the bytes that any connection reads, until its protocol takes them."""

    def __len__(self) -> int:
        return len(self._open)

    def has_place(self) -> bool:
        """Return True if a connection may be accepted, at least to be told that it is too many."""
        if len(self._open) < self._most + SHED:
            return True
        client = max(self._clients.values(), key=lambda each: len(each.surplus))
        return self._displace(client.surplus, Refusal.CONNECTIONS) or self.make_room()

    def opened(self, address: str) -> Connection:
        """Return the place of a new connection."""
        name = client_of(address)
        client = self._clients.get(name) or _Client()
        shed: ApiError | None = None
        if (obstacle := self._obstacle(client, with_request=False)) is not None:
            self.refused(obstacle)
            shed = self._too_many(obstacle, client)
        made = Connection(name, self._clock(), shed=shed)
        self._open.add(made)
        self._clients[name] = client
        client.open += 1
        if shed is None:
            self._place(client)
        client.without_request(made)[made] = None
        self._count()
        return made

    def admit(self, connection: Connection) -> bool:
        """Give a connection that is beyond a limit a place that is free, or that one gives up by
        now. Return False where there is none."""
        client = self._clients.get(connection.client)
        if client is None or connection not in self._open:  # it has left
            return False
        if self._obstacle(client, with_request=True) is not None:
            return False
        client.surplus.pop(connection, None)
        self._place(client)
        connection.shed = None
        return True

    def may_admit(self, connection: Connection) -> bool:
        """Return True if a connection without a request may soon give way to this one."""
        client = self._clients.get(connection.client)
        if client is None:
            return False
        of_client = client.placed >= self._most_of_client
        return any(each.idle for each in ([client] if of_client else self._clients.values()))

    def closed(self, connection: Connection) -> None:
        """Forget a connection. Idempotent."""
        self._lingering.pop(connection, None)
        if connection not in self._open:
            return
        self._open.remove(connection)
        client = self._clients[connection.client]
        client.open -= 1
        if connection.shed is None:
            client.placed -= 1
            self._placed -= 1
        client.without_request(connection).pop(connection, None)
        if not client.open:
            del self._clients[connection.client]
        self._count()

    def opening(self, connection: Connection) -> None:
        """Record that a connection's TLS handshake begins."""
        self._begin_time(connection)

    def served(self, connection: Connection, by: Guarded, drop: Callable[[], object]) -> None:
        """Record that a connection's handshake is over, and who serves it."""
        connection.served_by, connection.drop = by, drop
        self._begin_time(connection)

    def busy(self, connection: Connection) -> None:
        """Record that a request has begun: the connection no longer gives way."""
        if connection in self._open:
            self._clients[connection.client].without_request(connection).pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Record that there is no request any more."""
        if connection in self._open:
            connection.since = self._clock()
            self._clients[connection.client].without_request(connection)[connection] = None

    def lingers(self, connection: Connection, protocol: Guarded) -> None:
        """Record that a connection has given way and waits until its client has read why. Where too
        many wait, the one that has waited longest is hung up."""
        self._lingering[connection] = protocol
        if len(self._lingering) > LINGERING:
            longest = next(iter(self._lingering))
            self._lingering.pop(longest).hang_up()

    def make_room(self, reason: Refusal = Refusal.CONNECTIONS) -> bool:
        """Close a connection without a request. Return False where none gives way yet."""
        client = max(self._clients.values(), key=lambda each: len(each.idle), default=None)
        return client is not None and self._displace(client.idle, reason)

    def check(self) -> None:
        """End the connections whose deadlines have passed, and those beyond the limits that ask
        nothing."""
        for connection in tuple(self._open):
            if connection.served_by is None:
                continue  # its handshake has a deadline of its own
            if connection.shed is not None and self._gives_way(connection):
                self._drop(connection)
            else:
                connection.served_by.check()

    def refused(self, reason: Refusal) -> None:
        self._metrics.refused(reason)

    def _obstacle(self, client: _Client, with_request: bool) -> Refusal | None:
        """Return the limit at which no connection gives its place to a new one; None: there is a
        place.

        with_request: only to a request does a connection in its handshake give way. In a burst, the
        client is as late with its own.
        """
        of_client = Refusal.CONNECTIONS_OF_CLIENT
        if client.placed >= self._most_of_client:
            if not self._displace(client.idle, of_client, opening=with_request):
                return of_client
        if self._placed >= self._most and not self.make_room():
            return Refusal.CONNECTIONS
        return None

    def _too_many(self, limit: Refusal, client: _Client) -> ApiError:
        if limit is Refusal.CONNECTIONS_OF_CLIENT:
            return too_many(
                ErrorCode.OVERLOADED,
                f"this address has {client.placed} connections with requests",
                f"{self._most_of_client} connections",
            )
        return too_many(
            ErrorCode.UNAVAILABLE,
            f"the server has {self._placed} connections with requests",
            f"{self._most} connections",
        )

    def _begin_time(self, connection: Connection) -> None:
        """Give a connection its time anew. Of its client's without a request, it is the last."""
        connection.since = self._clock()
        if connection in self._open:
            without = self._clients[connection.client].without_request(connection)
            if connection in without:
                without.move_to_end(connection)

    def _place(self, client: _Client) -> None:
        client.placed += 1
        self._placed += 1

    def _displace(
        self,
        asked_nothing: "OrderedDict[Connection, None]",
        reason: Refusal,
        *,
        opening: bool = True,
    ) -> bool:
        """Close one of these connections. Return False where none gives way. opening: also one in
        its handshake."""
        for connection in tuple(islice(asked_nothing, _LOOKED_AT)):  # the longest idle first
            if (opening or connection.served_by) and self._gives_way(connection):
                self._drop(connection)
                self.refused(reason)
                return True
        return False

    def _gives_way(self, connection: Connection) -> bool:
        """Return True for a connection without a request that had its time to begin one."""
        time_s = OPENING_S if connection.served_by is None else GRACE_S
        return (
            connection in self._clients[connection.client].without_request(connection)
            and self._clock() - connection.since >= time_s
            and not connection.has_sent()
            and not (connection.served_by and connection.served_by.is_writing())
        )

    def _drop(self, connection: Connection) -> None:
        self.closed(connection)
        connection.drop()

    def _count(self) -> None:
        self._metrics.connections.set(len(self._open))
