"""Prefixes by channels that pull: read where another worker's cache has them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import aio

from baton.core.state_ref import StateRef
from baton.core.supervised import child
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.request.request import Reservation
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.rpc.peer_channels import PeerChannels
from baton.transfer.channels import frames
from baton.transfer.channels.base import Channel
from baton.transfer.channels.ends import Reader
from baton.transfer.errors import ChannelError, TransferError
from baton.transfer.memory.segments import Segment, cut_prefix
from baton.worker.context import WorkerContext

log = logging.getLogger(__name__)

RETRY_S = 60.0


@dataclass(frozen=True)
class _Known:
    """A connection to one incarnation of a worker by one channel, or the failure to make one."""

    incarnation: int
    endpoint: bytes  # of its lender
    connecting: "asyncio.Task[Reader | None]"  # None: it could not be reached
    since_s: float

    @property
    def unreachable(self) -> bool:
        return self.connecting.done() and self.connecting.result() is None

    @property
    def stale(self) -> bool:
        """True when the reader is of no more use, or an unreachable worker is worth a new try."""
        if not self.connecting.done():
            return False
        reader = self.connecting.result()
        return reader.closed if reader else time.monotonic() - self.since_s > RETRY_S


class PrefixReader:
    """The connections by which this worker reads from others. It connects to a worker when it is
    first asked, and remembers for a while whom it cannot reach. Used on the asyncio thread."""

    def __init__(
        self, context: WorkerContext, channels: Sequence[Channel], peers: PeerChannels
    ) -> None:
        """channels: those that pull, the best first; may be empty. peers: for asking to be lent."""
        self._context = context
        self._peers = peers
        self._channels = tuple(channels)
        self._readers: dict[tuple[str, str], _Known] = {}  # by worker id and channel

    async def close(self) -> None:
        """End every read, and return when nothing is read any more."""
        for key, known in list(self._readers.items()):
            await self._forget(key, known)

    async def read(
        self,
        source: common_pb2.WorkerIdentity,
        prefix: SaltedPrefix,
        reservation: Reservation,
        deadline_s: float,
    ) -> int | None:
        """Read `prefix` from `source` into the reservation.

        Returns the number of tokens that the source has; when that is all, they are in the
        reservation. Returns None where no channel lets this worker read from the source. However
        it ends, nothing is written into the reservation afterwards. Raises AioRpcError and
        TransferError.
        """
        try:
            async with asyncio.timeout(deadline_s):
                for channel in self._channels:
                    found = await self._read(channel, source, prefix, reservation, deadline_s)
                    if found is not None:
                        return found
        except TimeoutError:
            raise TransferError(
                f"{source.worker_id} was not reached within {deadline_s:g} s"
            ) from None
        return None

    async def _read(
        self,
        channel: Channel,
        source: common_pb2.WorkerIdentity,
        prefix: SaltedPrefix,
        reservation: Reservation,
        deadline_s: float,
    ) -> int | None:
        """Read by one channel. Returns None where it does not join the two."""
        known = await self._recall(channel, source)
        if known is not None and known.unreachable:
            return None
        stub = handoff_pb2_grpc.PrefixesStub(await self._peers.to(source))
        call = stub.Lend(timeout=deadline_s)
        try:
            wanted = handoff_pb2.FetchPrefix(
                hello=self._context.hello,
                token_ids=prefix.token_ids,
                cache_salt=prefix.salt,
                kv_from=reservation.state.kv_from,
                channel=channel.name,
            )
            await call.write(wanted)
            lent = await _next_message(call, source)
            if lent.tokens < len(prefix):
                return lent.tokens
            reader = await self._reader(channel, source, lent.endpoint)
            if reader is None:
                return None
            await self._take(reader, lent, reservation)
            await call.done_writing()
            if not (await _next_message(call, source)).held:
                raise TransferError(
                    f"{source.worker_id} did not keep the prefix locked until it was read; the "
                    "bytes that arrived are not used"
                )
            return lent.tokens
        finally:
            call.cancel()

    async def _take(
        self, reader: Reader, lent: handoff_pb2.LentPrefix, reservation: Reservation
    ) -> None:
        memory = self._context.memory
        segments = cut_prefix(
            memory.slots, memory.pages, reservation.state.kv_from, lent.tokens, lent.segment_bytes
        )
        into = reservation.state
        await reader.read(segments, into, StateRef(lent.slot, tuple(lent.pages)))
        if lent.checksums:
            await asyncio.to_thread(self._check, segments, lent.checksums, into)

    def _check(self, segments: list[Segment], checksums: Sequence[int], into: StateRef) -> None:
        """Raise ChecksumError unless the bytes of `into` have these checksums."""
        for segment, checksum in zip(segments, checksums, strict=True):
            header = frames.Header(segment, checksum)
            header.check(self._context.memory.written(segment, into))

    async def _recall(self, channel: Channel, source: common_pb2.WorkerIdentity) -> _Known | None:
        """Return what is known of this incarnation of `source`. Forgets what is stale."""
        key = (source.worker_id, channel.name)
        known = self._readers.get(key)
        if known is not None and (known.stale or known.incarnation != source.incarnation):
            await self._forget(key, known)
            known = self._readers.get(key)
        return known

    async def _reader(
        self, channel: Channel, source: common_pb2.WorkerIdentity, endpoint: bytes
    ) -> Reader | None:
        """Return the one connection to `source` by `channel`, made at its first use; None where
        the two are not joined."""
        if not endpoint:
            return None
        known = await self._recall(channel, source)
        if known is not None and known.endpoint != endpoint:  # it has begun to lend anew
            await self._forget((source.worker_id, channel.name), known)
            known = await self._recall(channel, source)
        if known is None:
            connecting = child(self._connect(channel, source, endpoint))
            known = _Known(source.incarnation, endpoint, connecting, time.monotonic())
            self._readers[source.worker_id, channel.name] = known
        return await asyncio.shield(known.connecting)

    async def _forget(self, key: tuple[str, str], known: _Known) -> None:
        reader = await asyncio.shield(known.connecting)
        if self._readers.get(key) is known:
            del self._readers[key]
        if reader is not None:
            await reader.close()

    async def _connect(
        self, channel: Channel, source: common_pb2.WorkerIdentity, endpoint: bytes
    ) -> Reader | None:
        try:
            return await channel.connect_reader(endpoint)
        except ChannelError as error:
            log.warning("no prefixes of %s by %s: %s", source.worker_id, channel.name, error)
        except Exception:  # a fault of the channel's library: prefixes are got without it
            log.exception("no prefixes of %s by %s", source.worker_id, channel.name)
        return None


async def _next_message(
    call: aio.StreamStreamCall, source: common_pb2.WorkerIdentity
) -> handoff_pb2.LentPrefix:
    message: handoff_pb2.LentPrefix | object = await call.read()
    if not isinstance(message, handoff_pb2.LentPrefix):
        raise TransferError(f"{source.worker_id} closed the stream of a loan without a reply")
    return message
