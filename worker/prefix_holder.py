"""What this worker's prefix cache has, for other workers' caches: `baton.v1.Prefixes`."""

import asyncio

import grpc
from grpc import aio

from baton.engine.prefix_share import Loan
from baton.proto import handoff_pb2, handoff_pb2_grpc
from baton.transfer.channel import Writing
from baton.transfer.errors import TransferError
from baton.transfer.grpc_channel import GRPC, GrpcOutlet
from baton.transfer.hashes import prompt_hash
from baton.transfer.regions import Holder
from baton.transfer.segments import Kind, cut_kv, cut_state, nbytes
from baton.transfer.tickets import Claim, Received
from baton.worker.context import WorkerContext
from baton.worker.errors import WorkerError, abort, error_of
from baton.worker.handshake import check_hello


class PrefixHolder(handoff_pb2_grpc.PrefixesServicer):
    """Writes what is asked for under the caller's ticket, from where it lies.

    By gRPC alone: its receiver applies the bytes, so a caller that gives up has its memory back at
    once, without a word from here.
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
        segments = [
            *cut_kv(memory.pages, kv_from, loan.tokens, limit),
            *cut_state(memory.slots, limit, kind=Kind.SNAPSHOT),
        ]
        for segment in segments:
            await writing.write(segment, holder)
            sent = sent.plus(segment.kind, nbytes(segment, memory.pages))
        if segments:
            await writing.finish()
        return sent
