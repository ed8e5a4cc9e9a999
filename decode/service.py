"""The service `baton.v1.Rank`: takes requests from routers and answers with tokens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError, IncompatibleError, StoppedError
from baton.core.supervised import OnFailure, spawn
from baton.decode.grants import Grants
from baton.decode.prefill_link import PrefillLink
from baton.decode.quarantine import Quarantine
from baton.decode.rank_request import RankRequest
from baton.decode.rank_resources import RankResources
from baton.decode.router_session import RouterSession
from baton.decode.state_returner import StateReturner
from baton.engine.request.events import RequestFinished, TokenSampled
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.access import check_claim
from baton.rpc.awake_timeout import awake_timeout
from baton.rpc.errors import abort, error_of, make_error
from baton.rpc.handshake import HELLO_S, check_version
from baton.transfer.tickets import TicketTable, tell_on_loop
from baton.worker.channels import WorkerChannels
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.prefixes import Prefixes

LAST_WORDS_S = 10.0  # for routers to read the ends of their requests; their leases may end sooner


class DecodeService(worker_pb2_grpc.RankServicer):
    """The decode role of a worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        # The incarnation keeps generations above those of every earlier start of this worker.
        tickets = TicketTable(context.memory, context.hello.worker.incarnation, tell_on_loop())
        self._grants = Grants(context.port)
        self._channels = WorkerChannels(context, tickets)
        self._prefixes = Prefixes(context, tickets, self._channels)
        self._quarantine = Quarantine(context, self._grants, self.link_to)
        state_returner = StateReturner(context, self._prefixes.fetcher)
        self._rank = RankResources(context, tickets, self._grants, state_returner, self._quarantine)
        self._links: dict[str, PrefillLink] = {}  # by address
        self._requests: set[RankRequest] = set()
        self._sessions: set[RouterSession] = set()
        self._failure: common_pb2.Error | None = None  # why the process ends
        # END: without them later hand-offs wait for memory for ever, and what is left of a round
        # that was broken off, memory that was reserved or freed, is known to nobody.
        spawn(self._grants.run, context.owner, OnFailure.END, "grants")
        spawn(self._quarantine.run, context.owner, OnFailure.END, "quarantine")

    def add_to(self, server: aio.Server) -> None:
        worker_pb2_grpc.add_RankServicer_to_server(self, server)
        self._channels.add_to(server)
        self._prefixes.add_to(server)

    @property
    def busy(self) -> int:
        return len(self._requests)

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        return [link.peer for link in self._links.values()]

    def channels(self) -> dict[str, str]:
        return {link.peer.worker_id: link.channel for link in self._links.values()}

    def links(self) -> dict[str, float]:
        return {}

    def link_to(self, peer: common_pb2.WorkerIdentity) -> PrefillLink:
        """Return the link to `peer`. It is made at its first use."""
        link = self._links.get(peer.address)
        if link is None or link.peer.incarnation != peer.incarnation:
            link = PrefillLink(
                peer,
                self._context.hello,
                self._context.credentials,
                self._channels.handoffs,
                self._quarantine,
                self._context.owner,
                self._context.lease_s,
                self._link_ended,
            )
            self._links[peer.address] = link
        return link

    def on_batch(self, batch: EventBatch) -> None:
        by_engine_id = {request.engine_id: request for request in self._requests}
        sampled = 0
        ended = False
        for event in batch.events:
            ended = ended or type(event) is RequestFinished
            request = by_engine_id.get(event.request_id)
            if request is not None:
                sampled += type(event) is TokenSampled
                request.on_event(event, batch.at_s)
        if sampled:
            self._context.metrics.count_tokens("output", sampled)
        if ended:
            self._grants.memory_freed()

    def on_end(self, error: StoppedError) -> None:
        self._failure = error_of(error, self._context.worker_id)
        for request in list(self._requests):
            request.fail(self._failure)

    def hand_over(self, why: str) -> None:
        message = f"decode rank {self._context.worker_id} {why}"
        for request in list(self._requests):
            request.fail(make_error(ErrorCode.UNAVAILABLE, self._context.worker_id, message))

    async def close(self) -> None:
        self.hand_over("is stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.gather(*(session.close() for session in self._sessions))
        await self._prefixes.close()
        for link in list(self._links.values()):
            await link.close()

    async def Session(
        self,
        messages: AsyncIterator[worker_pb2.RouterMessage],
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
        await context.write(worker_pb2.RankMessage(hello=self._context.hello))
        session = RouterSession(
            hello.router_id, self._context.lease_s, self._begin, self._introduced
        )
        self._sessions.add(session)
        try:
            await session.serve(messages, context)
        finally:
            self._sessions.discard(session)

    async def _greet(
        self, messages: AsyncIterator[worker_pb2.RouterMessage], context: aio.ServicerContext
    ) -> common_pb2.Hello:
        """Return the router's Hello. Raise BatonError if it is not the caller's own, or its version
        differs."""
        first = await anext(aiter(messages), None)
        if first is None or not first.HasField("hello"):
            raise IncompatibleError("a Session stream begins with Hello")
        check_claim(context, first.hello)
        check_version(first.hello, self._context.worker_id)
        return first.hello

    def _begin(self, start: worker_pb2.StartRequest, session: RouterSession) -> RankRequest:
        request = RankRequest(
            self._rank, self.link_to, start, session, lambda over: self._forget(over, session)
        )
        self._requests.add(request)
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(request.fail, self._failure)
        return request

    def _introduced(self, peer: common_pb2.WorkerIdentity) -> None:
        """Connect to a prefill worker early: a pair's first NIXL agents take half a second."""
        if self._quarantine.refusal(peer) is None:
            self.link_to(peer)

    def _forget(self, request: RankRequest, session: RouterSession) -> None:
        self._requests.discard(request)
        session.forget(request)

    def _link_ended(self, link: PrefillLink) -> None:
        if self._links.get(link.peer.address) is link:
            del self._links[link.peer.address]
