"""Connections to the gRPC port that one client has too many of.

gRPC bounds its connections in all, and tells of one only when it has a call. One client could
therefore hold all of them without a call. Here they are found among the sockets of this process.
"""

import asyncio
import os
import socket
from collections import Counter, defaultdict

from baton.api.access.client_limits import Refusal, client_of
from baton.api.access.client_metrics import ClientMetrics
from baton.api.server.busy_connections import BusyConnections
from baton.rpc.connections import Endpoint, endpoint_of_caller, open_connections

LOOK_S = 0.5


class SurplusConnections:
    """Closes the connections without calls that a client has beyond its limit.

    `CallGuard` refuses calls on connections beyond the limit.
    """

    def __init__(self, port: int, busy: BusyConnections, metrics: ClientMetrics) -> None:
        """port: the gRPC server's."""
        self._port = port
        self._busy = busy
        self._metrics = metrics

    async def watch(self) -> None:
        """Look every `LOOK_S`, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            # Nobody has too many while this process has no more files than that.
            if len(os.listdir("/proc/self/fd")) > self._busy.most_of_client:
                # Aside: a look takes several microseconds a file.
                await asyncio.to_thread(self._close, self._busy.peers)

    def _close(self, peers: frozenset[str]) -> None:
        """Close those that are too many now. peers: the connections with calls."""
        surplus = self._surplus({endpoint_of_caller(peer) for peer in peers})
        if not surplus:
            return
        for endpoint, port, connection in open_connections():
            if port == self._port and endpoint in surplus:
                connection.shutdown(socket.SHUT_RDWR)
                self._metrics.refused(Refusal.CONNECTIONS_OF_CLIENT)

    def _surplus(self, busy: set[Endpoint]) -> set[Endpoint]:
        idle = defaultdict[str, list[Endpoint]](list)
        count = Counter[str]()
        for endpoint, port, _ in open_connections():
            if port == self._port:
                client = client_of(endpoint[0])
                count[client] += 1
                if endpoint not in busy:
                    idle[client].append(endpoint)
        most = self._busy.most_of_client
        return {each for client in idle for each in idle[client][: max(count[client] - most, 0)]}
