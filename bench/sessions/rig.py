"""Routers and ranks that are up, and one round of requests through them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from baton.bench.cluster.load import DEADLINE_S
from baton.bench.cluster.stream_client import Exchange, StreamedAnswer, exchange
from baton.bench.cluster.thread_cpu import thread_seconds
from baton.bench.sessions.client_port import ClientPort
from baton.bench.sessions.mix import Lengths
from baton.bench.sessions.processes import (
    Child,
    RankPlan,
    child,
    play_ranks,
    route,
    worker_names,
)
from baton.core.errors import PeerLostError
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.certs.cluster_credentials import ClusterCredentials
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.router.config import RouterConfig
from baton.rpc.identity import ProcessRole
from baton.rpc.lease import DEFAULT_LEASE_MS

READY_S = 180.0
FIRST_ID, LAST_ID = 3, 500  # of prompts
PLAIN = TelemetryOptions()
LOOP = "router"
"""The name of the thread with a router's event loop."""


@dataclass(frozen=True)
class Round:
    """The tokens, the time and the CPU time of one round of requests."""

    tokens: int
    seconds: float  # from the first request sent to the last token
    cpu_s: Mapping[str, float]  # of all routers, by thread
    answers: Sequence[StreamedAnswer]
    messages: int  # with tokens, of all ranks to all routers

    def us_token(self, thread: str | None = None) -> float:
        """Return the routers' CPU time a token in microseconds; of one thread, or of all."""
        spent = sum(self.cpu_s.values()) if thread is None else self.cpu_s.get(thread, 0.0)
        return spent / self.tokens * 1e6

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


class Rig:
    """Routers, and the certificates of the ranks that may join them."""

    def __init__(
        self,
        routers: Sequence[Child],
        ports: Sequence[ClientPort],
        credentials: ClusterCredentials,
        rng: random.Random,
    ) -> None:
        self._routers = routers
        self._ports = ports
        self._credentials = credentials
        self._rng = rng
        self._ranks: Child | None = None  # of the newest `ranks`

    @contextmanager
    def ranks(
        self, count: int, step_s: float, routers: int = 1, *, eager: bool = False
    ) -> Iterator[None]:
        """Let `count` canned ranks join the first `routers` routers while the context is open.

        eager: their first tokens come at once, not with the next step.
        """
        folder, addresses = self._credentials.folder_of, self._internal[:routers]
        plan = RankPlan(
            ("prefill-0", folder(ProcessRole.PREFILL, "prefill-0")),
            tuple((name, folder(ProcessRole.DECODE, name)) for name in worker_names(count)),
            addresses,
            step_s,
            eager,
        )
        with child(play_ranks, plan) as ranks:
            for address in self.addresses[:routers]:
                _wait_for(address, lambda ready: ready == count + 1)
            self._ranks = ranks
            yield
        for address in self.addresses[:routers]:
            _wait_for(address, lambda ready: ready == 0)

    def play(self, requests: Sequence[Lengths], routers: int = 1) -> Round:
        """Send all requests at once, dealt out to the first `routers` routers."""
        servers = self.addresses[:routers]
        bodies = [self._body(lengths) for lengths in requests]

        async def all_() -> list[Exchange]:
            return await asyncio.gather(
                *(
                    exchange(servers[at % routers], body, DEADLINE_S)
                    for at, body in enumerate(bodies)
                )
            )

        before, sent = self._cpu(routers), self._messages()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exchanges = runner.run(all_())
        spent = self._cpu(routers)
        spent.subtract(before)
        messages = self._messages() - sent
        answers = [each.answer() for each in exchanges]
        seconds = max(a.ended for a in answers) - min(a.sent for a in answers)
        tokens = sum(len(a.token_ids) for a in answers)
        return Round(tokens, seconds, spent, answers, messages)

    def idle_percent(self, seconds: float) -> float:
        """Return the first router's use of one core while nobody asks, in percent."""
        before = self._cpu(1)
        began = time.monotonic()
        time.sleep(seconds)
        after = self._cpu(1)
        return 100 * (after.total() - before.total()) / (time.monotonic() - began)

    @property
    def urls(self) -> list[str]:
        """Return where each router answers clients."""
        return [each.url for each in self.addresses]

    @property
    def addresses(self) -> list[RouterAddress]:
        """Return where each router answers clients, with what opens it."""
        return [
            port.address(each.first.http_address)
            for port, each in zip(self._ports, self._routers, strict=True)
        ]

    def cpu_s(self, router: int) -> float:
        """Return the CPU seconds so far of all threads of a router."""
        return thread_seconds(self._routers[router].pid, {}).total()

    @property
    def _internal(self) -> tuple[str, ...]:
        return tuple(each.first.internal_address for each in self._routers)

    def _messages(self) -> int:
        return 0 if self._ranks is None else int(self._ranks.ask("messages"))

    def _cpu(self, routers: int) -> Counter[str]:
        spent: Counter[str] = Counter()
        for each in self._routers[:routers]:
            spent += thread_seconds(each.pid, each.ask("threads"))
        return spent

    def _body(self, lengths: Lengths) -> dict[str, Any]:
        prompt = self._rng.choices(range(FIRST_ID, LAST_ID), k=lengths.prompt)
        return {
            "prompt": prompt,
            "max_tokens": lengths.answer,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }


@contextmanager
def rig(
    model: Path,
    credentials: ClusterCredentials,
    routers: int,
    ranks: int,
    rng: random.Random,
    lease_ms: int = DEFAULT_LEASE_MS,
    ports: Sequence[ClientPort] = (),
    telemetry: TelemetryOptions = PLAIN,
) -> Iterator[Rig]:
    """Start real routers, each a process, and issue the certificates of `ranks` ranks.

    ports: of the first routers, for clients; those of the others are open to everybody
    """
    ports = [*ports, *[ClientPort()] * (routers - len(ports))]
    for role, names in (
        (ProcessRole.PREFILL, ["prefill-0"]),
        (ProcessRole.DECODE, worker_names(ranks)),
        (ProcessRole.ROUTER, [f"router-{number}" for number in range(routers)]),
    ):
        for name in names:
            credentials.issue(role, name)
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                child(
                    route,
                    RouterConfig(
                        model=model,
                        credentials=credentials.folder_of(ProcessRole.ROUTER, f"router-{number}"),
                        max_queued=100_000,
                        max_queued_tokens=1 << 40,
                        lease_ms=lease_ms,
                        api_keys=port.keys,
                        client_tls=port.tls,
                        telemetry=telemetry,
                    ),
                )
            )
            for number, port in enumerate(ports)
        ]
        yield Rig(started, ports, credentials, rng)


def _wait_for(router: RouterAddress, enough: Any) -> None:
    """Wait until the number of ready workers of a router is right. Raises PeerLostError."""
    client = RouterClient(router.url, router.api_key, router.trust)
    until = time.monotonic() + READY_S
    while not enough(sum(bool(w["ready"]) for w in client.server_info()["workers"])):
        if time.monotonic() > until:
            raise PeerLostError(
                f"the ranks did not join or leave {router.url} within {READY_S:g} s"
            )
        time.sleep(0.1)
