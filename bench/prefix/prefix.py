"""`baton bench prefix`: a trace's hit rate by memory budget, compared with an infinite cache."""

import random
from pathlib import Path

import click

from baton.bench.contract import Report, json_option, seed_option, show
from baton.bench.prefix.replay import CacheBudget, Replay, Replayed
from baton.bench.prefix.trace import TokenRuns, TraceRequest, read

GRID = 256  # tokens, the chunk of Nemotron-Nano-9B-v2
STATE_BYTES = 143_600_000  # of one request, Nemotron-Nano-9B-v2, SSM state in fp32
KV_BYTES = 16_384  # a token, Nemotron-Nano-9B-v2, bf16
INFINITE = 10**9


def budget(gigabytes: float, page_size: int) -> CacheBudget:
    """Split a budget: half for pages, half for snapshots."""
    half = gigabytes * 1e9 / 2
    return CacheBudget(int(half // (KV_BYTES * page_size)), int(half // STATE_BYTES))


def _replay(
    trace: list[TraceRequest], seed: int, page_size: int, at: CacheBudget, snapshots: int
) -> Replayed:
    replay = Replay(page_size, GRID, at, snapshots)
    sums = replay.run(TokenRuns(seed).keys(trace))
    replay.check()
    return sums


def _infinite(trace: list[TraceRequest], page_size: int) -> CacheBudget:
    """Return a budget with room for everything in the trace."""
    tokens = sum(request.input_length for request in trace)
    return CacheBudget(tokens // page_size + 1, tokens // GRID + 1)


@click.command("prefix")
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True
)
@click.option(
    "--budgets", default="8,32,128,512", show_default=True, help="Gigabytes, separated by commas."
)
@click.option("--page-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--snapshots", type=click.IntRange(1), default=4, show_default=True,
              help="Most snapshots that one prompt leaves.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=None, help="Only the first ones.")
@seed_option
@json_option
def prefix(
    trace: Path,
    budgets: str,
    page_size: int,
    snapshots: int,
    requests: int | None,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Replay a trace against the prefix cache alone; no model runs.

    hit_rate: share of prompt tokens that need no computing, at the largest budget. best_hit_rate:
    with an infinite cache and a snapshot at every grid depth. hit_rate_<GB>: at each budget;
    one_<GB>: with one snapshot a prompt.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    loaded = read(trace, requests)
    sizes = [float(part) for part in budgets.split(",")]
    best = _replay(loaded, seed, page_size, _infinite(loaded, page_size), INFINITE)
    results = {"requests": float(best.requests), "best_hit_rate": best.hit_rate}
    for size in sizes:
        for name, count in (("hit_rate", snapshots), ("one", 1)):
            done = _replay(loaded, seed, page_size, budget(size, page_size), count)
            results[f"{name}_{size:g}"] = done.hit_rate
    results["hit_rate"] = results[f"hit_rate_{max(sizes):g}"]
    config = {"trace": trace.name, "page_size": page_size, "grid": GRID, "seed": seed,
              "snapshots": snapshots, "state_bytes": STATE_BYTES, "kv_bytes": KV_BYTES}  # fmt: skip
    show(Report("prefix", config, results), json_wanted)
