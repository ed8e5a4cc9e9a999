"""Prefixes by NIXL: read where another worker's cache has them."""

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import aio

from baton.engine.request import Reservation
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.transfer import frames
from baton.transfer.errors import ChannelError, TransferError
from baton.transfer.grpc_options import OPTIONS
from baton.transfer.nixl_reach import Reach
from baton.transfer.nixl_reader import NixlReader
from baton.transfer.regions import Holder
from baton.transfer.segments import Segment, cut_prefix
from baton.worker.channels import agent_name
from baton.worker.context import WorkerContext

log = logging.getLogger(__name__)

RETRY_S = 60.0


@dataclass(frozen=True)
class _Known:
    """One life of a worker."""

    incarnation: int
    connecting: "asyncio.Task[NixlReader | None]"  # None: it could not be reached
    since_s: float

    @property
    def stale(self) -> bool:
        """Of no use any more, or worth another try."""
        if not self.connecting.done():
            return False
        reader = self.connecting.result()
        return reader.closed if reader else time.monotonic() - self.since_s > RETRY_S


class PrefixReader:
    """Connects to a worker when it is first asked, and remembers for a while whom it cannot reach.
    Everything happens on the asyncio thread."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)
        self._readers: dict[str, _Known] = {}  # by worker id

    async def close(self) -> None:
        """Nothing is read any more when it returns."""
        for worker_id, known in list(self._readers.items()):
            await self._forget(worker_id, known)

    async def read(
        self,
        source: common_pb2.WorkerIdentity,
        token_ids: Sequence[int],
        reservation: Reservation,
        deadline_s: float,
    ) -> int | None:
        """Tokens that the source has; when that is all, they are in the reservation. None: NIXL
        does not join the two. However it ends, nothing is written there any more.

        Raises AioRpcError, TransferError.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self._read(source, token_ids, reservation, deadline_s)
        except TimeoutError:
            raise TransferError(
                f"{source.worker_id} was not reached within {deadline_s:g} s"
            ) from None

    async def _read(
        self,
        source: common_pb2.WorkerIdentity,
        token_ids: Sequence[int],
        reservation: Reservation,
        deadline_s: float,
    ) -> int | None:
        async with aio.insecure_channel(source.address, options=OPTIONS) as channel:
            call = handoff_pb2_grpc.PrefixesStub(channel).Lend(timeout=deadline_s)
            wanted = handoff_pb2.FetchPrefix(
                hello=self._context.hello, token_ids=token_ids, kv_from=reservation.kv_from
            )
            await call.write(wanted)
            lent = await _said(call, source)
            if lent.tokens < len(token_ids):
                return lent.tokens
            reader = await self._reader(source, lent)
            if reader is None:
                return None
            await self._take(reader, lent, reservation)
            await call.done_writing()
            if not (await _said(call, source)).held:
                raise TransferError(f"{source.worker_id} did not keep what it had lent")
            return lent.tokens

    async def _take(
        self, reader: NixlReader, lent: handoff_pb2.LentPrefix, reservation: Reservation
    ) -> None:
        memory = self._context.memory
        segments = cut_prefix(
            memory.slots, memory.pages, reservation.kv_from, lent.tokens, lent.segment_bytes
        )
        into = Holder(reservation.slot, reservation.pages)
        await reader.read(segments, into, Holder(lent.slot, tuple(lent.pages)))
        if lent.checksums:
            await asyncio.to_thread(self._check, segments, lent.checksums, into)

    def _check(self, segments: list[Segment], checksums: Sequence[int], into: Holder) -> None:
        """Raises ChecksumError."""
        for segment, checksum in zip(segments, checksums, strict=True):
            header = frames.Header(segment, checksum)
            header.check(self._context.memory.read(segment, into))

    async def _reader(
        self, source: common_pb2.WorkerIdentity, lent: handoff_pb2.LentPrefix
    ) -> NixlReader | None:
        if not lent.HasField("endpoint"):
            return None
        known = self._readers.get(source.worker_id)
        if known is not None and (known.stale or known.incarnation != source.incarnation):
            await self._forget(source.worker_id, known)
            known = self._readers.get(source.worker_id)
        if known is None:
            connecting = asyncio.ensure_future(self._connect(source, lent.endpoint))
            known = _Known(source.incarnation, connecting, time.monotonic())
            self._readers[source.worker_id] = known
        return await asyncio.shield(known.connecting)

    async def _forget(self, worker_id: str, known: _Known) -> None:
        reader = await asyncio.shield(known.connecting)
        if self._readers.get(worker_id) is known:
            del self._readers[worker_id]
        if reader is not None:
            await reader.close()

    async def _connect(
        self, source: common_pb2.WorkerIdentity, endpoint: handoff_pb2.NixlEndpoint
    ) -> NixlReader | None:
        context = self._context
        name = f"{agent_name(context)}/q{next(self._numbers)}"
        try:
            reach = await asyncio.to_thread(Reach, name, context.memory, endpoint)
        except ChannelError as error:
            log.warning("prefixes of %s come by gRPC: %s", source.worker_id, error)
            return None
        return NixlReader(
            reach, context.memory, context.poller, context.lease_s, context.metrics.count_received
        )


async def _said(
    call: aio.StreamStreamCall, source: common_pb2.WorkerIdentity
) -> handoff_pb2.LentPrefix:
    message: handoff_pb2.LentPrefix | object = await call.read()
    if not isinstance(message, handoff_pb2.LentPrefix):
        raise TransferError(f"{source.worker_id} ended a loan without a word")
    return message
