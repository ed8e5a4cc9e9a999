"""`baton bench trace`: a cluster under the arrivals and shared prompts of a published trace."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click

from baton.bench.cluster.trace_load import (
    TraceLoad,
    cacheable_share,
    figures,
    play_trace,
    sample,
)
from baton.bench.contract import (
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.prefix.trace import BLOCK, TraceRequest, read
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.preflight import check_model
from baton.deploy.config_from import config_from
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.options.serve import ClusterArguments
from baton.engine.models.family_table import configured_model

_DIVIDE = click.Choice([str(2**power) for power in range(BLOCK.bit_length())])


@click.command("trace", cls=GroupedCommand)
@click.option("--trace", required=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A JSON object a line, with timestamp (ms), input_length, output_length and "
              "hash_ids (of blocks of 512 tokens).")  # fmt: skip
@takes(ClusterArguments)
@click.option("--requests", type=click.IntRange(2), default=120, show_default=True,
              help="Requests, in whole conversations drawn at random.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True,
              help="Arrivals a second, on the average.")  # fmt: skip
@click.option("--divide", type=_DIVIDE, default="8", show_default=True,
              help="Number by which the lengths of prompts and answers are divided.")  # fmt: skip
@click.option("--ttft-slo-ms", type=click.FloatRange(0, min_open=True), default=1000.0,
              show_default=True, help="Most time to the first token of an answer that counts as "
              "goodput.")  # fmt: skip
@click.option("--peer", "peers", multiple=True, metavar="NAME=URL",
              help="An OpenAI server with the same model, measured in turn with ours.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def trace(
    arguments: ClusterArguments,
    trace: Path,
    requests: int,
    rate: float,
    divide: str,
    ttft_slo_ms: float,
    peers: tuple[str, ...],
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Send a part of a trace to a cluster started for this, with its times of arrival, lengths and
    shared beginnings of prompts. Mooncake's published traces have the form.

    limits: cached_share of one cache that forgets nothing. A peer's KEY_ratio is ours divided by
    the peer's, the median of the turns.
    """
    config = config_from(arguments)
    check_model(config.engine)
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    drawn = sample(read(trace), requests, rng)
    if len(drawn) < 2:
        raise click.ClickException(f"{trace} has {len(drawn)} requests; expected at least 2")
    named = dict(peer.split("=", 1) for peer in peers)
    played = _Played(drawn, rate, int(divide), ttft_slo_ms / 1e3)
    turns = _turns(config, played, named, repeats, rng)
    settings = {
        "model": str(config.engine.model),
        "trace": trace.name,
        "prefill": config.prefill,
        "decode": config.decode,
        "requests": len(drawn),
        "rate": rate,
        "divide": int(divide),
        "ttft_slo_ms": ttft_slo_ms,
        "repeats": repeats,
        "seed": seed,
    }
    ours = turns.pop("")
    reports = {name: summarise(theirs) | _ratios(ours, theirs) for name, theirs in turns.items()}
    limits = {"cached_share": cacheable_share(drawn)}
    show(Report("trace", settings, summarise(ours), limits, reports), json_wanted)


@dataclass(frozen=True)
class _Played:
    """Requests to play, as the options say."""

    requests: Sequence[TraceRequest]
    rate: float
    divide: int
    slo_s: float


def _turns(
    config: ClusterConfig,
    played: _Played,
    peers: Mapping[str, str],
    repeats: int,
    rng: random.Random,
) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each turn by server; ours has an empty name."""
    model = configured_model(config.engine)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("", *peers)}
    with Cluster(config) as cluster:
        workers = cluster.router.server_info()["workers"]
        longest = min(worker["max_model_len"] for worker in workers)
        load = TraceLoad(played.requests, played.rate, played.divide, longest, model.vocab_size)
        servers = {"": cluster.address} | {n: RouterAddress(url) for n, url in peers.items()}
        for turn in range(repeats):
            names = list(servers) if turn % 2 == 0 else list(servers)[::-1]
            for name in names:
                prompts = load.prompts(rng.randrange(2**31))
                answers = play_trace(servers[name], load, prompts)
                found[name].append(figures(answers, prompts, played.slo_s))
    return found


def _ratios(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return our figures divided by theirs, turn by turn, the median. Without those that are 0."""
    both = list(zip(ours, theirs, strict=True))
    return {
        f"{key}_ratio": median(mine[key] / other[key] for mine, other in both)
        for key in ours[0]
        if all(other[key] for _, other in both)
    }
