"""Prefixes from other workers' caches into this one's. A failure costs what computing costs."""

import asyncio
import itertools
import logging
from enum import StrEnum

from grpc import aio

from baton.engine.engine import Engine
from baton.engine.errors import BatonError, RequestError
from baton.engine.prefix_cache import token_key
from baton.engine.request import Reservation
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.transfer.errors import TransferError
from baton.transfer.grpc_channel import GRPC
from baton.transfer.grpc_options import OPTIONS
from baton.transfer.hashes import prompt_hash
from baton.transfer.nixl_outlet import NIXL
from baton.transfer.regions import Holder
from baton.transfer.segments import Kind
from baton.transfer.tickets import Received, Ticket, TicketTable
from baton.worker.channels import channel_names
from baton.worker.context import WorkerContext
from baton.worker.errors import error_of_call
from baton.worker.prefix_reader import PrefixReader

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    FETCHED = "fetched"
    HERE = "here"  # this worker's cache had it already
    ABSENT = "absent"  # the other's cache has it no more
    NO_ROOM = "no_room"
    FAILED = "failed"


class PrefixFetcher:
    """Everything happens on the asyncio thread. Each fetch ends within a lease, but for the time
    that this engine's steps take."""

    def __init__(self, context: WorkerContext, tickets: TicketTable) -> None:
        self._context = context
        self._tickets = tickets
        self._deadline_s = context.lease_s
        self._reader = PrefixReader(context) if NIXL in channel_names(context) else None
        self._hello = common_pb2.Hello()
        self._hello.CopyFrom(context.hello)
        self._hello.channels.add(channel=GRPC, endpoint=context.data_address.encode())
        self._under_way: dict[tuple[int, int], asyncio.Task[Outcome]] = {}  # by length and hash
        self._names = itertools.count(1)

    async def close(self) -> None:
        """What is under way is given up."""
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()

    def start(
        self, source: common_pb2.WorkerIdentity, token_ids: tuple[int, ...]
    ) -> "asyncio.Task[Outcome]":
        """Bring the state and the KV of these tokens here, if `source` has them. A second who asks
        for the same waits for the first; who stops waiting does not stop it. Does not raise."""
        key = (len(token_ids), prompt_hash(token_ids))
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fetch(source, token_ids))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _fetch(
        self, source: common_pb2.WorkerIdentity, token_ids: tuple[int, ...]
    ) -> Outcome:
        try:
            outcome = await self._try(source, token_ids)
        except aio.AioRpcError as failed:
            error = error_of_call(failed, source.worker_id)
            log.warning("no prefix from %s: %s", source.worker_id, error.message)
            outcome = Outcome.FAILED
        except (BatonError, TransferError) as error:
            log.warning("no prefix from %s: %s", source.worker_id, error)
            outcome = Outcome.FAILED
        self._context.metrics.count_fetch(outcome.value)
        return outcome

    async def _try(self, source: common_pb2.WorkerIdentity, token_ids: tuple[int, ...]) -> Outcome:
        """At most twice: the source may have less than was hoped for, and says how much."""
        for _ in range(2):
            reserved = await self._reserve(token_ids)
            if not isinstance(reserved, Reservation):
                return reserved
            found = await self._fill(source, token_ids, reserved)
            if found == len(token_ids):
                return Outcome.FETCHED
            if not found:
                return Outcome.ABSENT
            token_ids = token_ids[:found]
        return Outcome.ABSENT

    async def _reserve(self, token_ids: tuple[int, ...]) -> Reservation | Outcome:
        name = f"prefix-{next(self._names)}"
        asked = asyncio.ensure_future(
            self._context.port.call(lambda engine: _reserve(engine, name, token_ids))
        )
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, asked: "asyncio.Future[Reservation | Outcome]") -> None:
        if asked.exception() is None and isinstance(asked.result(), Reservation):
            self._abandon(asked.result())

    def _abandon(self, reservation: Reservation | Outcome) -> None:
        if isinstance(reservation, Reservation):
            self._context.port.post(lambda engine: engine.abandon(reservation), "abandon")

    async def _fill(
        self,
        source: common_pb2.WorkerIdentity,
        token_ids: tuple[int, ...],
        reservation: Reservation,
    ) -> int:
        """Tokens that the source has; when that is all of them, they are in the cache now."""
        found = -1
        try:
            found = await self._bring(source, token_ids, reservation)
        finally:
            if found != len(token_ids):
                self._abandon(reservation)
        if found == len(token_ids):
            await self._keep(reservation, token_ids)
        return found

    async def _bring(
        self,
        source: common_pb2.WorkerIdentity,
        token_ids: tuple[int, ...],
        reservation: Reservation,
    ) -> int:
        """Tokens that the source has; when that is all of them, they are in the reservation."""
        if self._reader is not None:
            found = await self._reader.read(source, token_ids, reservation, self._deadline_s)
            if found is not None:
                return found
        reply, whole = await self._call(source, token_ids, reservation)
        if reply.tokens == len(token_ids) and not whole:
            raise TransferError(f"{source.worker_id} says that it sent all; it has not come")
        return reply.tokens

    async def _keep(self, reservation: Reservation, token_ids: tuple[int, ...]) -> None:
        """Once asked of the engine, it is done, whoever waits for it."""
        try:
            await self._context.port.call(lambda engine: engine.keep(reservation, token_ids))
        except RequestError:
            self._abandon(reservation)
            raise

    async def _call(
        self,
        source: common_pb2.WorkerIdentity,
        token_ids: tuple[int, ...],
        reservation: Reservation,
    ) -> tuple[handoff_pb2.FetchedPrefix, bool]:
        """What the source says, and whether every byte of it is here. No byte comes after."""
        ticket = self._tickets.grant(
            reservation.request_id,
            0,
            Holder(reservation.slot, reservation.pages),
            reservation.tokens,
            prompt_hash=prompt_hash(token_ids),
            sampling_hash=0,
            on_received=lambda _: None,
            on_broken=lambda *_: None,  # the source hears of it, and says so
            kv_from=reservation.kv_from,
            state=Kind.SNAPSHOT,
        )
        try:
            request = handoff_pb2.FetchPrefix(
                hello=self._hello,
                token_ids=token_ids,
                ticket_id=ticket.ticket_id,
                generation=ticket.generation,
                kv_from=ticket.kv_from,
            )
            async with aio.insecure_channel(source.address, options=OPTIONS) as channel:
                stub = handoff_pb2_grpc.PrefixesStub(channel)
                reply = await stub.Fetch(request, timeout=self._deadline_s)
            return reply, self._complete(ticket, reply)
        finally:
            self._tickets.close(ticket)

    def _complete(self, ticket: Ticket, reply: handoff_pb2.FetchedPrefix) -> bool:
        sent = Received(reply.segments, reply.bytes_state, reply.bytes_kv)
        return self._tickets.complete(ticket) and self._tickets.received(ticket.claim) == sent


def _reserve(engine: Engine, name: str, token_ids: tuple[int, ...]) -> Reservation | Outcome:
    """On the engine's thread."""
    if engine.prefixes.state_tokens(token_ids) == len(token_ids):
        return Outcome.HERE
    return engine.reserve(name, len(token_ids), token_key(token_ids)) or Outcome.NO_ROOM
