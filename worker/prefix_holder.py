"""The service by which other workers get prefixes of this one's cache: `baton.v1.Prefixes`."""

import asyncio
import logging
from collections.abc import AsyncIterator

from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.core.state_ref import StateRef
from baton.core.supervised import child
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.handoff.prefix_share import Loan
from baton.proto import handoff_pb2, handoff_pb2_grpc
from baton.rpc.access import check_claim
from baton.rpc.convert import ticket_from_proto
from baton.rpc.errors import abort, error_of, make_error
from baton.rpc.handshake import check_hello
from baton.transfer.channels import frames
from baton.transfer.channels.ends import Lender, WriteOperation
from baton.transfer.errors import ChannelError, TransferError
from baton.transfer.hashes import prompt_hash
from baton.transfer.memory.segments import Segment, cut_prefix, nbytes
from baton.transfer.tickets import Claim, Received
from baton.worker.channels import WorkerChannels
from baton.worker.context import WorkerContext
from baton.worker.host_process import visible_pid

log = logging.getLogger(__name__)


class PrefixHolder(handoff_pb2_grpc.PrefixesServicer):
    """The servicer of `Prefixes`.

    `Fetch` writes a prefix under the caller's ticket by a fenced channel. `Lend` locks it and lets
    the caller read it in place. In both cases a caller that gives up need not wait for this side
    before it reuses its memory.
    """

    def __init__(self, context: WorkerContext, channels: WorkerChannels) -> None:
        self._context = context
        self._fenced = channels.fenced
        self._channels = {channel.name: channel for channel in channels.readable}
        self._lenders = {channel.name: channel.open_lender() for channel in channels.readable}
        self._loan_s = context.lease_s  # the longest that anything is lent

    async def close(self) -> None:
        """End every loan: nothing can be read here after this returns."""
        for lender in self._lenders.values():
            await lender.close()

    async def Fetch(
        self, request: handoff_pb2.FetchPrefix, context: aio.ServicerContext
    ) -> handoff_pb2.FetchedPrefix:
        try:
            check_claim(context, request.hello)
            check_hello(self._context.hello, request.hello)
        except BatonError as refused:
            await abort(context, error_of(refused, self._context.worker_id))
        prefix = SaltedPrefix(tuple(request.token_ids), request.cache_salt)
        loan = await self._grant_loan(prefix)
        if loan is None:
            return handoff_pb2.FetchedPrefix()
        try:
            if loan.state.tokens < len(prefix):
                return handoff_pb2.FetchedPrefix(tokens=loan.state.tokens)
            sent = await self._write(request, loan)
        except TransferError as error:
            said = error_of(error, self._context.worker_id)
            await abort(context, said)
        finally:
            self._give_back(loan)
        return handoff_pb2.FetchedPrefix(
            tokens=loan.state.tokens,
            segments=sent.segments,
            bytes_state=sent.bytes_state,
            bytes_kv=sent.bytes_kv,
        )

    async def Lend(
        self, messages: AsyncIterator[handoff_pb2.FetchPrefix], context: aio.ServicerContext
    ) -> None:
        """Lend a prefix until the caller closes its half of the stream, at most for a lease."""
        try:
            async with asyncio.timeout(self._loan_s):
                await self._serve_loan(messages, context)
        except TimeoutError:
            late = f"the prefix was lent but not read within {self._loan_s:g} s"
            error = make_error(ErrorCode.DEADLINE_EXCEEDED, self._context.worker_id, late)
            await abort(context, error)

    async def _serve_loan(
        self, messages: AsyncIterator[handoff_pb2.FetchPrefix], context: aio.ServicerContext
    ) -> None:
        request = await anext(aiter(messages), None)
        if request is None:
            return
        try:
            check_claim(context, request.hello)
            check_hello(self._context.hello, request.hello)
        except BatonError as refused:
            await abort(context, error_of(refused, self._context.worker_id))
        prefix = SaltedPrefix(tuple(request.token_ids), request.cache_salt)
        loan = await self._grant_loan(prefix)
        if loan is None:
            await context.write(handoff_pb2.LentPrefix())
            return
        lender = self._lender(request)
        try:
            if lender is None or loan.state.tokens < len(prefix):
                await context.write(handoff_pb2.LentPrefix(tokens=loan.state.tokens))
            else:
                await self._lend(lender, request, loan, messages, context)
        finally:
            self._give_back(loan)

    def _lender(self, request: handoff_pb2.FetchPrefix) -> Lender | None:
        """Return the lender to read from, or None for a reader that this worker would serve."""
        channel = self._channels.get(request.channel)
        reader = visible_pid(self._context.hello.process, request.hello.process)
        if channel is None or not channel.reads_alone(reader):
            return None
        return self._lenders[channel.name]

    async def _lend(
        self,
        lender: Lender,
        request: handoff_pb2.FetchPrefix,
        loan: Loan,
        messages: AsyncIterator[handoff_pb2.FetchPrefix],
        context: aio.ServicerContext,
    ) -> None:
        memory, limit = self._context.memory, lender.segment_bytes
        segments = cut_prefix(memory.slots, memory.pages, request.kv_from, loan.state.tokens, limit)
        lent = handoff_pb2.LentPrefix(
            tokens=loan.state.tokens,
            slot=loan.state.slot,
            pages=loan.state.pages,
            segment_bytes=limit,
        )
        if lender.verify:
            lent.checksums.extend(await asyncio.to_thread(self._checksums, segments, loan))
        try:
            lent.endpoint = await lender.endpoint()
        except ChannelError as error:
            log.warning("cannot lend prefixes: %s", error)
            del lent.checksums[:]
            await context.write(lent)
            return
        with lender.lend():  # at once: a loan keeps the agent that the endpoint names
            await context.write(lent)
            async for _ in messages:
                pass
            # Count before the last message: on its arrival the caller ends the call and this task.
            lender.count(segments)
            await context.write(handoff_pb2.LentPrefix(tokens=loan.state.tokens, held=True))

    def _checksums(self, segments: list[Segment], loan: Loan) -> list[int]:
        memory, holder = self._context.memory, loan.state
        return [frames.checksum_of(s, memory.read(s, holder)) for s in segments]

    async def _grant_loan(self, prefix: SaltedPrefix) -> Loan | None:
        """Lock a prefix. If the caller leaves meanwhile, the loan is given back when it is made."""
        asked = child(self._context.port.call(lambda engine: engine.prefixes.lend(prefix)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, asked: "asyncio.Future[Loan | None]") -> None:
        if asked.exception() is None and (loan := asked.result()) is not None:
            self._give_back(loan)

    def _give_back(self, loan: Loan) -> None:
        self._context.port.post(lambda engine: engine.prefixes.give_back(loan), "give back")

    async def _write(self, request: handoff_pb2.FetchPrefix, loan: Loan) -> Received:
        offers = {offer.channel: offer.endpoint for offer in request.hello.channels}
        chosen = await self._fenced.connect(offers, request.hello.worker)
        sender = chosen.sender
        hashed = prompt_hash(request.token_ids, request.cache_salt)
        claim = Claim(ticket_from_proto(request), hashed, 0)
        memory, kv_from = self._context.memory, request.kv_from
        size = memory.slots.state_bytes + (loan.state.tokens - kv_from) * memory.pages.token_bytes
        # A fenced channel takes the place of the bytes from the ticket, not from the holder.
        writing = sender.open(claim, StateRef(0, ()), lambda under_way, segments: None, size)
        try:
            return await self._write_all(writing, loan, kv_from, sender.segment_bytes)
        except (TransferError, asyncio.CancelledError):
            writing.cancel()
            await writing.drained()
            raise
        finally:
            await sender.close()

    async def _write_all(
        self, writing: WriteOperation, loan: Loan, kv_from: int, limit: int
    ) -> Received:
        memory, holder = self._context.memory, loan.state
        sent = Received(0, 0, 0)
        segments = cut_prefix(memory.slots, memory.pages, kv_from, loan.state.tokens, limit)
        for segment in segments:
            await writing.write(segment, holder)
            sent = sent.plus(segment.kind, nbytes(segment, memory.pages))
        if segments:
            await writing.finish()
        return sent
