"""Two prefill workers and two decode ranks, each in a process and, where that can be, a network
namespace of its own, and the test in the place of a router."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from certificates import folder_of
from chaos.client import RankClient, Reply, new_request_id, session
from chaos.netns import LINK, Network, network, unavailable
from chaos.node import Node, start_nursery
from chaos.node_main import NodePlan
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from kit.polling import until_answered

from baton.core.role import Role
from baton.proto import common_pb2
from baton.worker.config import SendSnapshots, StateReturn

ROLES = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
PAIRS = [(p, d) for p in ("p0", "p1") for d in ("d0", "d1")]
LEASE_MS = 1000
UCX_TCP = {"UCX_TLS": "tcp"}
# What is off by default: more that moves, both ways.
RETURNING = {"state_return": StateReturn.EAGER, "send_snapshots": SendSnapshots.LAST}
_MODEL = HashModel()


def plan(channel: str = "grpc", lease_ms: int = LEASE_MS, **more: Any) -> NodePlan:
    """Return the plan that all workers of a cluster share; `Cluster` adds each one's identity."""
    return NodePlan("", Role.PREFILL, "", lease_ms, channel, **more)


@dataclass(frozen=True)
class Ask:
    """One request, and what its answer must be."""

    request_id: str
    prompt: tuple[int, ...]
    tokens: int

    @staticmethod
    def draw(rng: random.Random, low: int = 5, high: int = 110) -> "Ask":
        return Ask(new_request_id(), random_prompt(rng, low, high), rng.randint(2, 16))

    @property
    def answer(self) -> list[int]:
        return expected_tokens(_MODEL, self.prompt, self.tokens)


class Cluster:
    def __init__(self, plan: NodePlan, net: Network | None) -> None:
        """plan: of every worker, but for its name, role, host and namespace."""
        self._plan = plan
        self.net = net
        self.nodes: dict[str, Node] = {}
        self._clients: dict[str, tuple[RankClient, AsyncExitStack]] = {}
        self._meeting = asyncio.Lock()

    @property
    def needs_no_link(self) -> bool:
        """Its channel goes by this machine's memory, not by the network."""
        return self._plan.channel == "nixl" and self._plan.env != UCX_TCP

    @property
    def maps_peers(self) -> bool:
        """Its channel writes into other processes of this machine without their help."""
        return self.needs_no_link and not self._plan.apart

    @property
    def lease_s(self) -> float:
        return self._plan.lease_ms / 1000

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    async def start(self, name: str) -> None:
        """A new life of `name`; the one before it must be over."""
        host, netns, options = "127.0.0.1", None, self._plan.options
        if self.net is not None:
            host, netns = self.net.host(name), self.net.names[name]
            options = options | {"nixl_interfaces": (LINK,)}
        role = ROLES[name]
        plan = replace(
            self._plan,
            name=name,
            role=role,
            host=host,
            netns=netns,
            options=options,
            credentials=folder_of(role.value, name),
        )
        node = Node(plan)
        await node.start()
        self.nodes[name] = node

    async def client(self, rank: str) -> RankClient:
        """The session with `rank`; a new one where the last was lost."""
        async with self._meeting:
            held = self._clients.get(rank)
            if held is None or held[0].lost is not None:
                await self._drop(rank)
                stack = AsyncExitStack()
                client = await stack.enter_async_context(session(self[rank]))
                self._clients[rank] = held = (client, stack)
            return held[0]

    async def begin(
        self,
        ask: Ask,
        prefills: Sequence[str],
        rank: str,
        *,
        attempt: int = 1,
        outputs: Sequence[int] = (),
        state_at: common_pb2.StateAt | None = None,
    ) -> Reply:
        client = await self.client(rank)
        return await client.start(
            ask.request_id,
            ask.prompt,
            greedy(ask.tokens),
            [self[name] for name in prefills],
            attempt=attempt,
            outputs=outputs,
            state_at=state_at,
        )

    async def serve(self, ask: Ask, prefill: str, rank: str) -> None:
        """One request by this pair, which nothing may disturb."""
        await self.held_up(prefill, rank)
        reply = await (await self.begin(ask, [prefill], rank)).end()
        if reply.lost_by_us or (reply.silenced and await self.held_up(prefill, rank)):
            await self.serve(Ask(new_request_id(), ask.prompt, ask.tokens), prefill, rank)
            return
        where = f"{ask.request_id} by {prefill} and {rank}"
        assert reply.whole, f"{where}: {reply.finished or reply.lost}"
        assert reply.token_ids == ask.answer, where

    async def serves_again(self, rng: random.Random, prefill: str, rank: str) -> None:
        """Wait until a pair answers, without a restart. The first requests may hit what a fault has
        left."""

        async def is_whole() -> bool:
            ask = Ask.draw(rng)
            reply = await (await self.begin(ask, [prefill], rank)).end()
            assert reply.token_ids == ask.answer[: len(reply.token_ids)]
            return reply.whole

        await until_answered(is_whole)

    async def held_up(self, *names: str) -> bool:
        """Return whether this machine, being overloaded, held a worker up for more than half a
        lease since the last call."""
        longest_s = max([await self[name].ask("held_up") for name in names])
        if longest_s > self.lease_s / 2:
            print(f"one of {names} was held up for {longest_s:.2f} s")
        return longest_s > self.lease_s / 2

    async def settled(self, *names: str) -> None:
        """Everybody that is named, or everybody."""
        for name in names or tuple(self.nodes):
            await self[name].settled()

    async def renew(self) -> None:
        """After a test that failed: everybody and every link new."""
        await self.close()
        for name in ROLES:
            if self.net is not None:
                await self.net.mend(name)
            await self.start(name)

    async def close(self) -> None:
        for rank in list(self._clients):
            await self._drop(rank)
        for node in self.nodes.values():
            await node.end()

    async def _drop(self, rank: str) -> None:
        held = self._clients.pop(rank, None)
        if held is not None:
            await held[1].aclose()


@asynccontextmanager
async def running_cluster(plan: NodePlan, *, linked: bool) -> AsyncIterator[Cluster]:
    """linked: in namespaces, where this machine has them."""
    async with AsyncExitStack() as stack:
        net = None
        if linked and unavailable() is None:
            net = stack.enter_context(network(*ROLES))
        start_nursery()
        cluster = Cluster(plan, net)
        stack.push_async_callback(cluster.close)
        for name in ROLES:
            await cluster.start(name)
        yield cluster
