"""`baton.v1.Rank`: routers send requests, this rank answers with tokens."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc import aio

from baton.decode.grants import Grants
from baton.decode.incoming import Rank
from baton.decode.prefill_link import PrefillLink
from baton.decode.quarantine import Quarantine
from baton.decode.rank_request import RankRequest
from baton.decode.router_session import RouterSession
from baton.decode.way_back import WayBack
from baton.engine.events import Finished, TokenSampled
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.transfer.grpc_channel import GrpcReceiver
from baton.transfer.tickets import TicketTable, tell_on_loop
from baton.worker.channels import make_inlets
from baton.worker.context import WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.errors import WorkerError, abort, error_of, make_error
from baton.worker.handshake import HELLO_S, check_version
from baton.worker.prefixes import Prefixes


class DecodeService(worker_pb2_grpc.RankServicer):
    """The decode role, round one engine."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        # Generations of a later life are above all of an earlier one.
        tickets = TicketTable(context.memory, context.hello.worker.incarnation, tell_on_loop())
        self._grants = Grants(context.port)
        self._prefixes = Prefixes(context, tickets)
        self._quarantine = Quarantine(context, self._grants, self.link_to)
        way_back = WayBack(context, self._prefixes.fetcher)
        self._rank = Rank(context, tickets, self._grants, way_back, self._quarantine)
        self._receiver = GrpcReceiver(tickets, context.metrics.count_received)
        self._inlets = make_inlets(context, tickets)
        self._links: dict[str, PrefillLink] = {}  # by address
        self._requests: set[RankRequest] = set()
        self._failure: common_pb2.Error | None = None  # why the engine has stopped
        self._tasks = [
            asyncio.ensure_future(self._grants.run()),
            asyncio.ensure_future(self._quarantine.run()),
        ]

    def add_to(self, server: aio.Server) -> None:
        worker_pb2_grpc.add_RankServicer_to_server(self, server)
        self._receiver.add_to(server)
        self._prefixes.add_to(server)

    @property
    def busy(self) -> int:
        return len(self._requests)

    def peers(self) -> list[common_pb2.WorkerIdentity]:
        return [link.peer for link in self._links.values()]

    def channels(self) -> dict[str, str]:
        return {link.peer.worker_id: link.channel for link in self._links.values()}

    def link_to(self, peer: common_pb2.WorkerIdentity) -> PrefillLink:
        """The one link to `peer`, made at its first use."""
        link = self._links.get(peer.address)
        if link is None or link.peer.incarnation != peer.incarnation:
            link = PrefillLink(
                peer,
                self._context.hello,
                self._inlets,
                self._quarantine,
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
            ended = ended or isinstance(event, Finished)
            request = by_engine_id.get(event.request_id)
            if request is not None:
                sampled += isinstance(event, TokenSampled)
                request.on_event(event, batch.at_s)
        if sampled:
            self._context.metrics.count_tokens("output", sampled)
        if ended:
            self._grants.memory_freed()

    def on_engine_failure(self, error: Exception) -> None:
        self._failure = error_of(error, self._context.worker_id)
        for request in list(self._requests):
            request.fail(self._failure)

    async def close(self) -> None:
        message = f"decode rank {self._context.worker_id} is stopping"
        for request in list(self._requests):
            request.fail(make_error(common_pb2.UNAVAILABLE, self._context.worker_id, message, True))
        await self._prefixes.close()
        for link in list(self._links.values()):
            await link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def Session(
        self,
        messages: AsyncIterator[worker_pb2.RouterMessage],
        context: aio.ServicerContext,
    ) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await self._greet(messages)
        except TimeoutError:
            message = f"no Hello within {HELLO_S:g} s"
            silent = make_error(common_pb2.UNAVAILABLE, self._context.worker_id, message, True)
            await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, silent)
        except WorkerError as refused:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, refused.error)
        await context.write(worker_pb2.RankMessage(hello=self._context.hello))
        session = RouterSession(
            hello.router_id, self._context.lease_s, self._begin, self._introduced
        )
        await session.serve(messages, context)

    async def _greet(self, messages: AsyncIterator[worker_pb2.RouterMessage]) -> common_pb2.Hello:
        """The router's Hello. Raises WorkerError."""
        first = await anext(aiter(messages), None)
        if first is None or not first.HasField("hello"):
            raise WorkerError(
                make_error(
                    common_pb2.INVALID_REQUEST,
                    self._context.worker_id,
                    "a Session stream begins with Hello",
                )
            )
        check_version(first.hello, self._context.worker_id)
        return first.hello

    def _begin(self, start: worker_pb2.StartRequest, session: RouterSession) -> RankRequest:
        request = RankRequest(
            self._rank, self, start, session.add, lambda over: self._forget(over, session)
        )
        self._requests.add(request)
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(request.fail, self._failure)
        return request

    def _introduced(self, peer: common_pb2.WorkerIdentity) -> None:
        """Join it now: a pair's first NIXL agents take half a second."""
        if self._quarantine.refusal(peer) is None:
            self.link_to(peer)

    def _forget(self, request: RankRequest, session: RouterSession) -> None:
        self._requests.discard(request)
        session.forget(request)

    def _link_ended(self, link: PrefillLink) -> None:
        if self._links.get(link.peer.address) is link:
            del self._links[link.peer.address]
