"""The service `baton.v1.Handoff`: computes prompts for decode ranks and writes their state."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError, IncompatibleError, StoppedError
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.step.layer_progress import LayersComputed
from baton.prefill.open_writes import OpenWrites
from baton.prefill.outgoing import OutgoingHandoff
from baton.prefill.peer import DecodePeer
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.rpc.access import check_claim
from baton.rpc.awake_timeout import awake_timeout
from baton.rpc.errors import abort, error_of, make_error
from baton.rpc.handshake import HELLO_S, check_hello
from baton.transfer.errors import ChannelError
from baton.transfer.tickets import TicketTable
from baton.worker.channels import WorkerChannels
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.prefixes import Prefixes
from baton.worker.state_options import StateReturn


class PrefillService(handoff_pb2_grpc.HandoffServicer):
    """The prefill role of a worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._open_writes = OpenWrites(context.owner)
        # Tickets are for prefixes that this worker fetches from other workers.
        tickets = TicketTable(context.memory, context.hello.worker.incarnation)
        self._channels = WorkerChannels(context, tickets)
        self._prefixes = Prefixes(context, tickets, self._channels)
        self._handoffs: dict[str, OutgoingHandoff] = {}  # by engine id
        self._peers: set[DecodePeer] = set()
        self._numbers = itertools.count(1)
        self._failure: common_pb2.Error | None = None  # why the process ends
        context.port.listen(self._on_layers)

    def add_to(self, server: aio.Server) -> None:
        handoff_pb2_grpc.add_HandoffServicer_to_server(self, server)
        self._channels.add_to(server)
        self._prefixes.add_to(server)

    @property
    def busy(self) -> int:
        return len(self._handoffs)

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        return [peer.identity for peer in self._peers]

    def channels(self) -> dict[str, str]:
        return {peer.identity.worker_id: peer.peer_connection.channel for peer in self._peers}

    def links(self) -> dict[str, float]:
        connections = [(peer.identity.worker_id, peer.peer_connection) for peer in self._peers]
        return {name: rate for name, each in connections if (rate := each.link_bytes_per_s)}

    def on_batch(self, batch: EventBatch) -> None:
        for event in batch.events:
            handoff = self._handoffs.get(event.request_id)
            if handoff is not None:
                handoff.on_event(event, batch.parked_states.get(event.request_id), batch.at_s)

    def _on_layers(self, computed: Sequence[LayersComputed], at_s: float) -> None:
        for layers in computed:
            handoff = self._handoffs.get(layers.request_id)
            if handoff is not None:
                handoff.on_layers(layers, at_s)

    def on_end(self, error: StoppedError) -> None:
        self._failure = error_of(error, self._context.worker_id)
        for handoff in list(self._handoffs.values()):
            handoff.fail(self._failure)

    def hand_over(self, why: str) -> None:
        message = f"prefill worker {self._context.worker_id} {why}"
        for handoff in list(self._handoffs.values()):
            handoff.fail(make_error(ErrorCode.UNAVAILABLE, self._context.worker_id, message))

    async def close(self) -> None:
        self.hand_over("is stopping")
        await self._prefixes.close()
        await self._open_writes.wait()

    async def Control(
        self,
        messages: AsyncIterator[handoff_pb2.DecodeMessage],
        context: aio.ServicerContext,
    ) -> None:
        try:
            async with awake_timeout(HELLO_S):
                hello = await self._greet(messages, context)
        except TimeoutError:
            message = f"no Hello within {HELLO_S:g} s"
            silent = make_error(ErrorCode.DEADLINE_EXCEEDED, self._context.worker_id, message)
            await abort(context, silent)
        except BatonError as refused:
            await abort(context, error_of(refused, self._context.worker_id))
        await context.write(handoff_pb2.PrefillMessage(hello=self._context.hello))
        peer = DecodePeer(
            hello,
            self._context.hello.process,
            self._channels.handoffs,
            self._open_writes,
            self._context.lease_s,
            self._begin,
            self._offered,
        )
        self._peers.add(peer)
        try:
            await peer.serve(messages, context)
        finally:
            self._peers.discard(peer)

    async def _greet(
        self, messages: AsyncIterator[handoff_pb2.DecodeMessage], context: aio.ServicerContext
    ) -> common_pb2.Hello:
        """Return the rank's Hello. Raise BatonError if it is not the caller's own, or the workers
        cannot work together."""
        first = await anext(aiter(messages), None)
        if first is None or not first.HasField("hello"):
            raise IncompatibleError("a Control stream begins with Hello")
        check_claim(context, first.hello)
        check_hello(self._context.hello, first.hello)
        try:
            self._channels.handoffs.check({offer.channel for offer in first.hello.channels})
        except ChannelError as apart:
            raise IncompatibleError(str(apart), apart.expected, apart.actual) from apart
        return first.hello

    def _begin(self, request: handoff_pb2.PrefillRequest, peer: DecodePeer) -> OutgoingHandoff:
        # Two ranks may hold attempts of one request at once, and so may two streams of one rank.
        engine_id = f"{request.request_id}.{request.attempt}.{next(self._numbers)}"
        handoff = OutgoingHandoff(
            self._context,
            peer.peer_connection,
            request,
            engine_id,
            self._prefixes.fetcher,
            lambda ended: self._forget(ended, peer),
        )
        self._handoffs[engine_id] = handoff
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(handoff.fail, self._failure)
        return handoff

    def _offered(self, offer: handoff_pb2.StateOffer, peer: DecodePeer) -> None:
        """Fetch a state that a rank offers: of a conversation that began on this worker."""
        if self._context.config.state_return is StateReturn.EAGER:
            prefix = SaltedPrefix(tuple(offer.token_ids), offer.cache_salt)
            self._prefixes.fetcher.start(peer.identity, prefix)

    def _forget(self, handoff: OutgoingHandoff, peer: DecodePeer) -> None:
        del self._handoffs[handoff.engine_id]
        peer.forget(handoff)
