"""`baton bench router`: what a router adds to a request, beside SGLang's."""

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import uvloop

from baton.bench.cluster.load import figures
from baton.bench.cluster.stream_client import Exchange, RequestFailed, StreamedAnswer, exchange
from baton.bench.cluster.thread_cpu import thread_seconds
from baton.bench.contract import (
    Peer,
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.router.decisions import Decisions
from baton.bench.router.direct import ask_rank
from baton.bench.router.sglang_router import NAME, missing, sglang_router
from baton.bench.sessions.bodies import TEXT, generate_bodies, short_text
from baton.bench.sessions.chat_model import write_chat_model
from baton.bench.sessions.client_port import ClientPort
from baton.bench.sessions.http_client import DEADLINE_S, Replies, post_all
from baton.bench.sessions.request_cpu import CountedRouter
from baton.bench.sessions.rig import Rig, rig
from baton.deploy.certs.cluster_credentials import cluster_credentials
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.proto.common_pb2 import DECODE, WorkerIdentity
from baton.router.policies.prefix_aware import PrefixAware
from baton.rpc.credentials import Credentials
from baton.rpc.identity import ProcessRole

WORKERS = (64, 1024)
STEP_S = 0.004
STREAMS, STREAM_TOKENS = 64, 96
WARM = 50  # requests that are not measured
MODEL = "model"


@click.command("router")
@click.option("--requests", type=click.IntRange(10), default=400, show_default=True,
              help="Requests, one at a time, for the latency.")  # fmt: skip
@click.option("--connections", type=click.IntRange(1), default=16, show_default=True,
              help="Connections, and five times as many requests, for the rate.")  # fmt: skip
@click.option("--sglang-python", type=click.Path(path_type=Path), default=Path(sys.executable),
              help="A Python that has sglang_router; by default this one.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def router(
    requests: int,
    connections: int,
    sglang_python: Path,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure what a router adds to a request, the rates that it passes on, and its decisions.

    A real router, and workers that answer at once with one canned token. added_ms: the latency over
    HTTP less that of the same worker without a router between (direct_ms), over its own protocol.
    requests_s: with --connections at a time; tokens_s: of 64 streams. SGLang's router, between a
    prefill and a decode worker, has the same clients and bodies in turns.

    cpu_us_request_KIND: CPU time of all threads of the router for a request, --connections at a
    time: generate, 64 characters; chat, a body of 600 bytes; turn, a body of 60 KB with 20 tools
    that continues a conversation, and first_turn, which begins it. KIND_secure: with API keys and
    TLS.

    decision_us_N: CPU time of a placement among N workers, hashing the prompt included, with a
    million cached prefixes and prompts as long as those of a conversation trace, 12,000 tokens in
    the mean. events_core_pct_N: of a core for what N workers report of their prefix caches, ten
    snapshots made and ten evicted a second each; statuses_core_pct_N: for the rest of their
    reports, ten a second each.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    shape = _Shape(requests, connections)
    with ExitStack() as stack:
        ours = stack.enter_context(_our_router(rng))
        peer: Peer | None = missing(sglang_python)
        theirs: _Sides | None = None
        if peer is None:
            try:
                theirs = stack.enter_context(_their_router(sglang_python))
            except RequestFailed as error:
                peer = {"skipped": str(error)}
        rounds: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        for _ in range(repeats):
            for side, found in zip((ours, theirs), rounds, strict=True):
                if side is not None:
                    found.append(shape.measured(side, rng))
    results = summarise(rounds[0])
    for workers in WORKERS:
        placed = Decisions(workers, PrefixAware.name, rng)
        decided = summarise([placed.measure() for _ in range(repeats)])
        results |= {_numbered(key, workers): value for key, value in decided.items()}
    if peer is None:
        peer = summarise(rounds[1])
        results["added_ratio"] = results["added_ms_p50"] / float(peer["added_ms_p50"])
        results["requests_s_ratio"] = results["requests_s"] / float(peer["requests_s"])
        for key in ("cpu_us_request_generate", "cpu_us_request_chat", "cpu_us_request_turn"):
            results[f"{key}_ratio"] = results[key] / float(peer[key])
    config = {"requests": requests, "connections": connections, "streams": STREAMS,
              "repeats": repeats, "seed": seed}  # fmt: skip
    show(Report("router", config, results, peers={NAME: peer}), json_wanted)


def _numbered(key: str, workers: int) -> str:
    """Return `decision_us_64_p99` for `decision_us_p99`: the number stands behind the unit."""
    name, unit, rest = key.partition("_us" if "_us" in key else "_pct")
    return f"{name}{unit}_{workers}{rest}"


@dataclass(frozen=True)
class _Sides:
    """A router and its worker, each as clients reach it."""

    router: CountedRouter
    direct: "_Direct"
    secured: CountedRouter | None = None  # with keys and TLS, before the same worker

    @property
    def url(self) -> str:
        return self.router.address.url


class _Direct:
    """A worker without a router between: HTTP of the peer's, or a session with a rank."""

    def __init__(
        self, url: str = "", rank: WorkerIdentity | None = None, trust: Credentials | None = None
    ) -> None:
        self._url, self._rank, self._trust = url, rank, trust

    def ask(self, bodies: Sequence[bytes]) -> Replies:
        if self._rank is None or self._trust is None:
            return post_all(f"{self._url}/generate", bodies, 1)
        return ask_rank(self._rank, self._trust, [[*range(3, 3 + TEXT)]] * len(bodies))


@dataclass(frozen=True)
class _Shape:
    requests: int
    connections: int

    def measured(self, sides: _Sides, rng: random.Random) -> dict[str, float]:
        url = f"{sides.url}/generate"
        post_all(url, generate_bodies(WARM, rng), self.connections)
        alone = post_all(url, generate_bodies(self.requests, rng), 1)
        direct = sides.direct.ask(generate_bodies(self.requests, rng))
        many = post_all(url, generate_bodies(5 * self.requests, rng), self.connections)
        streams = figures(_streams(sides.url, rng), 0)
        costs = sides.router.costs(5 * self.requests, self.connections, rng)
        if sides.secured is not None:
            secured = sides.secured.costs(5 * self.requests, self.connections, rng)
            costs |= {f"{key}_secure": value for key, value in secured.items()}
        return costs | {
            "added_ms_p50": alone.ms(0.5) - direct.ms(0.5),
            "added_ms_p99": alone.ms(0.99) - direct.ms(0.5),
            "direct_ms_p50": direct.ms(0.5),
            "requests_s": many.requests_s,
            "tokens_s": streams["output_tok_s"],
        }


def _streams(url: str, rng: random.Random) -> list[StreamedAnswer]:
    """Return the answers of STREAMS streams, all at once."""
    more = {"max_tokens": STREAM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    bodies = [{"model": MODEL, "prompt": short_text(rng), **more} for _ in range(STREAMS)]

    async def all_() -> list[Exchange]:
        server = RouterAddress(url)
        return await asyncio.gather(*(exchange(server, body, DEADLINE_S) for body in bodies))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return [each.answer() for each in runner.run(all_())]


@contextmanager
def _our_router(rng: random.Random) -> Iterator[_Sides]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_chat_model(folder / "model")
        credentials = stack.enter_context(cluster_credentials(None))
        secured = ClientPort.secured(folder, credentials.issue(ProcessRole.ROUTER, "clients"))
        up: Rig = stack.enter_context(
            rig(model, credentials, 2, 1, rng, ports=[ClientPort(), secured])
        )
        credentials.issue(ProcessRole.ROUTER, "router-direct")
        stack.enter_context(up.ranks(1, STEP_S, 2, eager=True))
        workers = RouterClient(up.urls[0]).server_info()["workers"]
        (rank,) = (each for each in workers if each["role"] == "decode")
        identity = WorkerIdentity(
            worker_id=rank["worker_id"], incarnation=1, address=rank["address"], role=DECODE
        )
        trust = Credentials(credentials.folder_of(ProcessRole.ROUTER, "router-direct"))
        counted = [
            CountedRouter(address, partial(up.cpu_s, number))
            for number, address in enumerate(up.addresses)
        ]
        yield _Sides(counted[0], _Direct(rank=identity, trust=trust), counted[1])


@contextmanager
def _their_router(python: Path) -> Iterator[_Sides]:
    with sglang_router(python, STEP_S) as (url, worker, pid):
        counted = CountedRouter(RouterAddress(url), lambda: thread_seconds(pid, {}).total())
        yield _Sides(counted, _Direct(worker))
