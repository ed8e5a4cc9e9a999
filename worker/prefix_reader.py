"""Prefixes by NIXL: read where another worker's cache has them."""

import asyncio
import itertools
import logging
from collections.abc import Sequence

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


class PrefixReader:
    """Connects to a worker when it is first asked, and remembers whom it cannot reach. Everything
    happens on the asyncio thread."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)
        self._readers: dict[str, tuple[int, asyncio.Task[NixlReader | None]]] = {}  # by worker id

    async def close(self) -> None:
        """Nothing is read any more when it returns."""
        for _, connecting in self._readers.values():
            reader = await connecting
            if reader is not None:
                await reader.close()

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
        incarnation, connecting = self._readers.get(source.worker_id, (0, None))
        if connecting is not None and connecting.done():
            earlier = connecting.result()
            if incarnation != source.incarnation or (earlier is not None and earlier.closed):
                del self._readers[source.worker_id]
                connecting = None
                if earlier is not None:
                    await earlier.close()
        if connecting is None:
            connecting = asyncio.ensure_future(self._connect(source, lent.endpoint))
            self._readers[source.worker_id] = source.incarnation, connecting
        return await asyncio.shield(connecting)

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
