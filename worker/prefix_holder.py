"""What this worker's prefix cache has, for other workers' caches: `baton.v1.Prefixes`."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
from grpc import aio

from baton.engine.prefix_share import Loan
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.transfer import frames
from baton.transfer.channel import Writing
from baton.transfer.errors import ChannelError, TransferError
from baton.transfer.grpc_channel import GRPC, GrpcOutlet
from baton.transfer.hashes import prompt_hash
from baton.transfer.nixl_lender import NixlLender
from baton.transfer.nixl_outlet import CHECKED_BYTES, NIXL, SEGMENT_BYTES
from baton.transfer.nixl_plan import wire_bytes
from baton.transfer.regions import Holder
from baton.transfer.segments import Segment, cut_prefix, nbytes
from baton.transfer.tickets import Claim, Received
from baton.worker.channels import agent_name, channel_names
from baton.worker.context import WorkerContext
from baton.worker.errors import WorkerError, abort, error_of, make_error
from baton.worker.handshake import check_hello

log = logging.getLogger(__name__)


class PrefixHolder(handoff_pb2_grpc.PrefixesServicer):
    """Writes what is asked for under the caller's ticket, from where it lies.

    By gRPC, whose receiver applies the bytes, or by NIXL, where the caller reads them: in both a
    caller that gives up has its memory back at once, without a word from here.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._outlet = GrpcOutlet(
            context.memory,
            verify=context.config.verifies(GRPC),
            deadline_s=context.lease_s,
            on_bytes=context.metrics.count_sent,
            tls=context.config.tls,
        )
        self._loan_s = context.lease_s  # the longest that anything is lent
        self._lender: NixlLender | None = None
        if NIXL in channel_names(context):
            name = f"{agent_name(context)}/l"
            self._lender = NixlLender(name, context.memory, context.poller)

    async def close(self) -> None:
        if self._lender is not None:
            await self._lender.close()

    async def Fetch(
        self, request: handoff_pb2.FetchPrefix, context: aio.ServicerContext
    ) -> handoff_pb2.FetchedPrefix:
        try:
            check_hello(self._context.hello, request.hello)
        except WorkerError as refused:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, refused.error)
        token_ids = tuple(request.token_ids)
        loan = await self._borrow(token_ids)
        if loan is None:
            return handoff_pb2.FetchedPrefix()
        try:
            if loan.tokens < len(token_ids):
                return handoff_pb2.FetchedPrefix(tokens=loan.tokens)
            sent = await self._write(request, loan)
        except TransferError as error:
            said = error_of(error, self._context.worker_id)
            await abort(context, grpc.StatusCode.ABORTED, said)
        finally:
            self._give_back(loan)
        return handoff_pb2.FetchedPrefix(
            tokens=loan.tokens,
            segments=sent.segments,
            bytes_state=sent.bytes_state,
            bytes_kv=sent.bytes_kv,
        )

    async def Lend(
        self, messages: AsyncIterator[handoff_pb2.FetchPrefix], context: aio.ServicerContext
    ) -> None:
        """Ends with the caller's side, or after a lease: the loan is over then."""
        try:
            async with asyncio.timeout(self._loan_s):
                await self._serve_loan(messages, context)
        except TimeoutError:
            late = f"what was lent was not read within {self._loan_s:g} s"
            error = make_error(
                common_pb2.DEADLINE_EXCEEDED, self._context.worker_id, late, retryable=True
            )
            await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, error)

    async def _serve_loan(
        self, messages: AsyncIterator[handoff_pb2.FetchPrefix], context: aio.ServicerContext
    ) -> None:
        request = await anext(aiter(messages), None)
        if request is None:
            return
        try:
            check_hello(self._context.hello, request.hello)
        except WorkerError as refused:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, refused.error)
        token_ids = tuple(request.token_ids)
        loan = await self._borrow(token_ids)
        if loan is None:
            await context.write(handoff_pb2.LentPrefix())
            return
        try:
            if self._lender is None or loan.tokens < len(token_ids):
                await context.write(handoff_pb2.LentPrefix(tokens=loan.tokens))
            else:
                await self._lend(self._lender, request, loan, messages, context)
        finally:
            self._give_back(loan)

    async def _lend(
        self,
        lender: NixlLender,
        request: handoff_pb2.FetchPrefix,
        loan: Loan,
        messages: AsyncIterator[handoff_pb2.FetchPrefix],
        context: aio.ServicerContext,
    ) -> None:
        memory, verify = self._context.memory, self._context.config.verifies(NIXL)
        limit = CHECKED_BYTES if verify else SEGMENT_BYTES
        segments = cut_prefix(memory.slots, memory.pages, request.kv_from, loan.tokens, limit)
        lent = handoff_pb2.LentPrefix(
            tokens=loan.tokens, slot=loan.slot, pages=loan.pages, segment_bytes=limit
        )
        try:
            lent.endpoint.CopyFrom(await lender.endpoint())
        except ChannelError as error:
            log.warning("prefixes cannot be read here: %s", error)
            await context.write(lent)
            return
        if verify:
            lent.checksums.extend(await asyncio.to_thread(self._checksums, segments, loan))
        lender.lend()
        try:
            await context.write(lent)
            async for _ in messages:
                pass
            # Before the last word: with it the caller ends the call, and this task.
            for segment in segments:
                self._context.metrics.count_sent(segment.kind, wire_bytes(segment, memory))
            await context.write(handoff_pb2.LentPrefix(tokens=loan.tokens, held=True))
        finally:
            lender.returned()

    def _checksums(self, segments: list[Segment], loan: Loan) -> list[int]:
        memory, holder = self._context.memory, Holder(loan.slot, loan.pages)
        return [frames.checksum_of(s, memory.read(s, holder)) for s in segments]

    async def _borrow(self, token_ids: tuple[int, ...]) -> Loan | None:
        """If the caller goes away meanwhile, the loan is given back when it comes."""
        asked = asyncio.ensure_future(
            self._context.port.call(lambda engine: engine.prefixes.lend(token_ids))
        )
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
        connection = await self._outlet.connect(offers.get(GRPC, b""))
        claim = Claim(request.ticket_id, request.generation, prompt_hash(request.token_ids), 0)
        # The ticket says where the bytes belong; gRPC's receiver looks there.
        writing = connection.open(claim, Holder(0, ()), lambda under_way, segments: None)
        try:
            return await self._write_all(writing, loan, request.kv_from, connection.segment_bytes)
        except (TransferError, asyncio.CancelledError):
            writing.cancel()
            await writing.drained()
            raise
        finally:
            await connection.close()

    async def _write_all(self, writing: Writing, loan: Loan, kv_from: int, limit: int) -> Received:
        memory, holder = self._context.memory, Holder(loan.slot, loan.pages)
        sent = Received(0, 0, 0)
        segments = cut_prefix(memory.slots, memory.pages, kv_from, loan.tokens, limit)
        for segment in segments:
            await writing.write(segment, holder)
            sent = sent.plus(segment.kind, nbytes(segment, memory.pages))
        if segments:
            await writing.finish()
        return sent
