"""The connections over which a process calls workers now and then."""

from dataclasses import dataclass

from grpc import aio

from baton.proto.common_pb2 import WorkerIdentity
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials


@dataclass(frozen=True)
class _Open:
    channel: aio.Channel
    peer: tuple[str, int, str]  # worker id, incarnation and address
    edition: int  # of the credentials that it was opened with


class PeerChannels:
    """One channel to each worker, kept for the next call: a handshake takes several milliseconds.

    Used on the asyncio thread.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._open: dict[str, _Open] = {}

    async def to(self, peer: WorkerIdentity) -> aio.Channel:
        """Return the channel to `peer`; do not close it. One to an earlier start of the worker, or
        one opened with another certificate, is closed. Raises PeerLostError as `dial_worker` does.
        """
        wanted = (peer.worker_id, peer.incarnation, peer.address)
        edition = self._credentials.edition
        found = self._open.get(peer.worker_id)
        if found is not None and (found.peer, found.edition) == (wanted, edition):
            return found.channel
        made = _Open(self._credentials.dial_worker(peer, OPTIONS), wanted, edition)
        self._open[peer.worker_id] = made
        if found is not None:
            await found.channel.close()
        return made.channel

    async def forget(self, worker_id: str) -> None:
        """Close the channel to a worker that is gone, if there is one. Calls over it end."""
        found = self._open.pop(worker_id, None)
        if found is not None:
            await found.channel.close()

    async def close(self) -> None:
        """Close all channels. Calls over them end."""
        while self._open:
            await self._open.popitem()[1].channel.close()
