"""`baton bench serve`: a whole cluster under streaming requests."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

import click

from baton.bench.cluster import cpu, load, scrape
from baton.bench.cluster.bare_engine import BareEngine
from baton.bench.cluster.handoff_cpu import handoff_cpu_ms
from baton.bench.cluster.load import Load
from baton.bench.cluster.needed import handoff_bytes
from baton.bench.contract import (
    Peer,
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.machine import cores
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.preflight import check_model
from baton.deploy.config_from import config_from
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.options.serve import ClusterArguments
from baton.deploy.process.since_start import seconds_since_command
from baton.engine.models.family_table import configured_model

MOVED = "baton_worker_sent_bytes_total"


@click.command("serve", cls=GroupedCommand)
@takes(ClusterArguments)
@click.option("--requests", type=click.IntRange(1), default=8, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True)
@click.option("--input-len", type=click.IntRange(1), default=512, show_default=True)
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True)
@click.option("--peer", "peers", multiple=True, metavar="NAME=URL",
              help="An OpenAI server with the same model, measured in turn with ours.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def serve(
    arguments: ClusterArguments,
    requests: int,
    concurrency: int,
    input_len: int,
    output_len: int,
    peers: tuple[str, ...],
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Send greedy streaming requests of fixed lengths over HTTP to a cluster started for this.

    start_s: from this command to the first token. idle_cpu_pct_max: the busiest worker process
    before the load. cpu_ms_handoff_*: the CPU time of a hand-off on each side, beside the engine,
    of 200 requests of 32 + 2 tokens, 16 at once (use --prefill-here off for it). limits: the same
    requests in one bare engine, on one core and on all.
    """
    config = config_from(arguments)
    check_model(config.engine)
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    shape = Load(requests, concurrency, input_len, output_len)
    named = dict(peer.split("=", 1) for peer in peers)
    measured = _Measured.of(config, shape, repeats, random.Random(seed), named)
    settings = {
        "model": str(config.engine.model),
        "prefill": config.prefill,
        "decode": config.decode,
        "dtype": str(config.engine.dtype),
        "page_size": config.engine.page_size,
        "requests": requests,
        "concurrency": concurrency,
        "input_len": input_len,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    report = Report("serve", settings, measured.results, measured.limits, measured.peers)
    show(report, json_wanted)


@dataclass(frozen=True)
class _Measured:
    results: Mapping[str, float]
    limits: Mapping[str, float]
    peers: Mapping[str, Peer]

    @classmethod
    def of(
        cls,
        config: ClusterConfig,
        shape: Load,
        repeats: int,
        rng: random.Random,
        peers: Mapping[str, str],
    ) -> "_Measured":
        """Measure our cluster, the bare engine and the peers in turn, `repeats` times."""
        model = configured_model(config.engine)
        ours: list[dict[str, float]] = []
        bare: list[dict[str, float]] = []
        theirs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}

        def prompts() -> list[list[int]]:
            return shape.draw(rng, model.vocab_size)

        with Cluster(config) as cluster:
            warm = Load(1, 1, shape.input_len, 2)
            start_s = _start_seconds(cluster, warm, warm.draw(rng, model.vocab_size))
            pids = {name: started.pid for name, started in cluster.workers.items()}
            idle_pct = max(cpu.cpu_percent(pids).values())
            handoffs = handoff_cpu_ms(cluster, model.vocab_size, rng)
            engine = BareEngine(config.engine)
            engine.measure(warm, warm.draw(rng, model.vocab_size), cores())
            for _ in range(repeats):
                ours.append(_ours(cluster, shape, prompts()))
                bare.append(_bare(engine, shape, prompts()))
                for name, url in peers.items():
                    theirs[name].append(_round(RouterAddress(url), shape, prompts()))
        needed = float(shape.requests * handoff_bytes(model, shape.input_len))
        once = {"bytes_needed": needed, "idle_cpu_pct_max": idle_pct, "start_s": start_s}
        once |= handoffs
        reports: dict[str, Peer] = {name: summarise(rounds) for name, rounds in theirs.items()}
        if "vllm" not in reports:
            reports["vllm"] = {"skipped": "no server named; --peer vllm=http://HOST:PORT"}
        return cls(summarise(ours) | once, summarise(bare), reports)


def _start_seconds(cluster: Cluster, shape: Load, prompts: list[list[int]]) -> float:
    """Return the seconds from this process's creation to the first answer's first token."""
    answers = load.play(cluster.address, shape, prompts)
    since = time.perf_counter() - answers[0].token_times[0]
    return seconds_since_command() - since


def _bare(engine: BareEngine, shape: Load, prompts: list[list[int]]) -> dict[str, float]:
    """Measure one thread and all threads: which is faster depends on the model's size."""
    results: dict[str, float] = {}
    for threads in sorted({1, cores()}):
        results |= engine.measure(shape, prompts, threads)
    return results


def _ours(cluster: Cluster, shape: Load, prompts: list[list[int]]) -> dict[str, float]:
    cluster.router.flush_cache()
    before = _bytes_moved(cluster)
    results = _round(cluster.address, shape, prompts)
    return results | {"bytes_moved": _bytes_moved(cluster) - before}


def _bytes_moved(cluster: Cluster) -> float:
    pages = map(cluster.router.metrics, cluster.workers)
    return scrape.total(pages, MOVED)


def _round(server: RouterAddress, shape: Load, prompts: list[list[int]]) -> dict[str, float]:
    return load.measure(shape, load.play(server, shape, prompts))
