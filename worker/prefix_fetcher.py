"""Fetches prefixes from other workers' caches. After a failure the prefix is computed here."""

import asyncio
import itertools
import logging
import time
from enum import StrEnum

from grpc import aio

from baton.core.errors import BatonError, RequestError
from baton.core.handoff_ids import HandoffId
from baton.core.supervised import child
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.request.request import Reservation
from baton.engine.sizing.plan import MemoryPlan
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.rpc.convert import ticket_to_proto
from baton.rpc.errors import error_of_call
from baton.rpc.peer_channels import PeerChannels
from baton.transfer.channels.channel_set import Receiver
from baton.transfer.errors import TransferError
from baton.transfer.hashes import prompt_hash
from baton.transfer.memory.segments import Kind
from baton.transfer.tickets import Received, Ticket, TicketTable
from baton.worker.channels import WorkerChannels
from baton.worker.context import WorkerContext
from baton.worker.prefix_reader import PrefixReader

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """The result of one fetch."""

    FETCHED = "fetched"
    HERE = "here"  # this worker's cache had it already
    COMPUTED = "computed"  # not fetched: computing it is sooner
    ABSENT = "absent"  # the other cache no longer has it
    NO_ROOM = "no_room"
    FAILED = "failed"


class PrefixFetcher:
    """The fetches of one worker. Used on the asyncio thread.

    Each fetch ends within a lease, not counting the time that this engine's steps take.
    """

    def __init__(
        self, context: WorkerContext, tickets: TicketTable, channels: WorkerChannels
    ) -> None:
        """channels: prefixes are read by those that pull. Where none joins the two workers, the
        source writes them by a fenced channel, so that the memory of a cancelled fetch is free at
        once."""
        self._context = context
        self._tickets = tickets
        self._deadline_s = context.lease_s
        self._peers = PeerChannels(context.credentials)
        self._reader = PrefixReader(context, channels.readable, self._peers)
        self._fenced = channels.fenced
        self._opening: asyncio.Task[Receiver] | None = None
        self._under_way: dict[SaltedPrefix, asyncio.Task[Outcome]] = {}
        self._names = itertools.count(1)
        self._cost = FetchCost()

    async def close(self) -> None:
        """Cancel the running fetches and wait for their ends."""
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self._reader.close()
        await self._peers.close()
        if self._opening is not None:
            await (await self._opening).close()

    def start(
        self, source: common_pb2.WorkerIdentity, prefix: SaltedPrefix, *, by_cost: bool = False
    ) -> "asyncio.Task[Outcome]":
        """Fetch the state and the KV of `prefix` from `source`, if it has them.

        by_cost: only if that is sooner than computing what this worker has not cached of it.
        Callers that want the same prefix share one task; do not cancel it. It does not raise.
        """
        task = self._under_way.get(prefix)
        if task is None:
            task = child(self._fetch(source, prefix, by_cost))
            self._under_way[prefix] = task
            task.add_done_callback(lambda _: self._under_way.pop(prefix, None))
        return task

    async def _fetch(
        self, source: common_pb2.WorkerIdentity, prefix: SaltedPrefix, by_cost: bool
    ) -> Outcome:
        try:
            outcome = await self._try(source, prefix, self._cost if by_cost else None)
        except aio.AioRpcError as failed:
            error = error_of_call(failed, source.worker_id)
            log.warning("no prefix from %s: %s", source.worker_id, error.message)
            outcome = Outcome.FAILED
        except BatonError as error:
            log.warning("no prefix from %s: %s", source.worker_id, error)
            outcome = Outcome.FAILED
        except Exception:  # a fault of ours: the request that waits for this must go on
            log.exception("no prefix from %s", source.worker_id)
            outcome = Outcome.FAILED
        self._context.metrics.count_fetch(outcome.value)
        return outcome

    async def _try(
        self, source: common_pb2.WorkerIdentity, prefix: SaltedPrefix, cost: FetchCost | None
    ) -> Outcome:
        """Fetch in at most two attempts: the first may report that the source has fewer tokens."""
        for _ in range(2):
            reserved = await self._reserve(prefix, cost)
            if not isinstance(reserved, Reservation):
                return reserved
            began = time.monotonic()
            found = await self._fill(source, prefix, reserved)
            if found == len(prefix):
                size = _bytes(self._context.engine.plan, len(prefix) - reserved.state.kv_from)
                self._cost.took(size, time.monotonic() - began)
                return Outcome.FETCHED
            if not found:
                return Outcome.ABSENT
            prefix = prefix.first(found)
        return Outcome.ABSENT

    async def _reserve(self, prefix: SaltedPrefix, cost: FetchCost | None) -> Reservation | Outcome:
        name = f"prefix-{next(self._names)}"
        asked = child(self._context.port.call(lambda engine: _reserve(engine, name, prefix, cost)))
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
            self._context.port.post(
                lambda engine: engine.reservations.abandon(reservation), "abandon"
            )

    async def _fill(
        self,
        source: common_pb2.WorkerIdentity,
        prefix: SaltedPrefix,
        reservation: Reservation,
    ) -> int:
        """Return the number of tokens that the source has. If that is all, they are now cached."""
        found = -1
        try:
            found = await self._bring(source, prefix, reservation)
        finally:
            if found != len(prefix):
                self._abandon(reservation)
        if found == len(prefix):
            await self._keep(reservation, prefix)
        return found

    async def _bring(
        self,
        source: common_pb2.WorkerIdentity,
        prefix: SaltedPrefix,
        reservation: Reservation,
    ) -> int:
        """Return the number of tokens that the source has. If that is all, they have arrived."""
        found = await self._reader.read(source, prefix, reservation, self._deadline_s)
        if found is not None:
            return found
        reply, whole = await self._call(source, prefix, reservation)
        if reply.tokens == len(prefix) and not whole:
            raise TransferError(
                f"{source.worker_id} reports that it sent the whole prefix, but it has not arrived"
            )
        return reply.tokens

    async def _keep(self, reservation: Reservation, prefix: SaltedPrefix) -> None:
        """Move the reservation into the cache. The engine completes it even if we are cancelled."""
        try:
            await self._context.port.call(
                lambda engine: engine.prefixes.keep(reservation, prefix.token_ids)
            )
        except RequestError:
            self._abandon(reservation)
            raise

    async def _call(
        self,
        source: common_pb2.WorkerIdentity,
        prefix: SaltedPrefix,
        reservation: Reservation,
    ) -> tuple[handoff_pb2.FetchedPrefix, bool]:
        """Return the source's answer, and whether every byte has arrived. No byte arrives later."""
        ticket = self._tickets.grant(
            HandoffId(reservation.request_id, 0),
            reservation.state,
            prompt_hash=prompt_hash(prefix.token_ids, prefix.salt),
            sampling_hash=0,
            on_received=lambda _: None,
            on_broken=lambda *_: None,  # the source is told, and reports it
            state=Kind.SNAPSHOT,
        )
        try:
            request = handoff_pb2.FetchPrefix(
                hello=await self._hello(),
                token_ids=prefix.token_ids,
                cache_salt=prefix.salt,
                **ticket_to_proto(ticket.name),
                kv_from=ticket.target.kv_from,
            )
            stub = handoff_pb2_grpc.PrefixesStub(await self._peers.to(source))
            reply = await stub.Fetch(request, timeout=self._deadline_s)
            return reply, self._complete(ticket, reply)
        finally:
            self._tickets.close(ticket)

    async def _hello(self) -> common_pb2.Hello:
        """Return this worker's Hello with its endpoints for writers of prefixes."""
        if self._opening is None:
            self._opening = child(self._fenced.open_receiver())
        receiver = await asyncio.shield(self._opening)
        hello = common_pb2.Hello()
        hello.CopyFrom(self._context.hello)
        for name, endpoint in receiver.offers.items():
            hello.channels.add(channel=name, endpoint=endpoint)
        return hello

    def _complete(self, ticket: Ticket, reply: handoff_pb2.FetchedPrefix) -> bool:
        sent = Received(reply.segments, reply.bytes_state, reply.bytes_kv)
        return self._tickets.complete(ticket) and self._tickets.received(ticket.claim) == sent


def _reserve(
    engine: Engine, name: str, prefix: SaltedPrefix, cost: FetchCost | None
) -> Reservation | Outcome:
    """Reserve memory for a prefix, or say why not. Called on the engine's thread."""
    missing = len(prefix) - engine.prefixes.state_tokens(prefix)
    if not missing:
        return Outcome.HERE
    if cost is not None:
        computing_s = missing * engine.status().prompt_token_s
        if not cost.sooner(_bytes(engine.plan, missing), computing_s):
            return Outcome.COMPUTED
    reserved = engine.reserve(name, len(prefix), prefix.key, salt=prefix.salt)
    return reserved or Outcome.NO_ROOM


def _bytes(plan: MemoryPlan, kv_tokens: int) -> int:
    """Return the bytes of a state and of the KV of so many tokens."""
    return plan.slot_layout.state_bytes + kv_tokens * plan.page_layout.token_bytes
