"""`baton bench prefix`: a trace's hit rate by memory budget, compared with two ideal caches."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import lcm
from pathlib import Path

import click

from baton.bench.contract import Report, json_option, seed_option, show
from baton.bench.prefix import clairvoyant
from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.bench.prefix.cluster import Placed, PlacedReplay
from baton.bench.prefix.replay import Replay, Replayed
from baton.bench.prefix.tiers import TierBudget
from baton.bench.prefix.trace import BLOCK, TokenRuns, TraceRequest, read
from baton.router.policies.registry import POLICIES

MODEL_GRID = 256  # tokens, the chunk of Nemotron-Nano-9B-v2
SIZES = PrefixBytes(state=143_600_000, kv=16_384)
"""Sizes of Nemotron-Nano-9B-v2, with SSM states in fp32 and KV in bf16."""
TRACE_GRID = lcm(MODEL_GRID, BLOCK)
"""The grid for a trace that names tokens by blocks. A prompt's last block is partly filled, and has
another name once the conversation has filled it. So a snapshot inside that block never matches,
although its tokens would come again."""
INFINITE = 10**9
LOADS = (0.5, 0.9)
"""Shares of capacity at which placement is simulated."""


class Numbers(click.ParamType[tuple[float, ...]]):
    """Positive numbers, separated by commas."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            self.fail(f"{value!r}; expected positive numbers, separated by commas.", param, ctx)
        return numbers


@dataclass(frozen=True)
class _Traffic:
    """The prompts of a trace. All replays see the same tokens."""

    requests: list[TraceRequest]
    runs: TokenRuns
    page_size: int

    def replay(
        self, grid: int, at: CacheBudget, snapshots: int, behind: TierBudget | None = None
    ) -> Replayed:
        replay = Replay(self.page_size, grid, at, snapshots, SIZES, behind)
        sums = replay.run(self.runs.keys(self.requests))
        replay.check()
        return sums

    def best(self, grid: int) -> Replayed:
        """Replay with room for everything, and a snapshot at every depth of the grid."""
        tokens = sum(request.input_length for request in self.requests)
        return self.replay(
            grid, CacheBudget(tokens // self.page_size + 1, tokens // grid + 1), INFINITE
        )

    def placed(
        self,
        grid: int,
        at: CacheBudget,
        snapshots: int,
        workers: int,
        policy: str,
        load: float,
        ranks: int = 0,
    ) -> Placed:
        """Replay on several workers, each with a budget of `at`.

        load: what an infinite cache would leave to compute, divided by what all prefill workers
        compute in the time of the trace. ranks: see `PlacedReplay`.
        """
        best = self.best(grid)
        seconds = max(request.timestamp for request in self.requests) / 1000
        if not seconds:
            raise click.UsageError("all requests of the trace come at once; --cluster needs times")
        tokens_s = (best.tokens - best.hit) / (load * workers * seconds)
        cache = partial(Replay, self.page_size, grid, at, snapshots, SIZES)
        replay = PlacedReplay(workers, policy, cache, tokens_s, grid, ranks)
        arrivals = (request.timestamp / 1000 for request in self.requests)
        answers = (request.output_length for request in self.requests)
        return replay.run(zip(arrivals, self.runs.keys(self.requests), strict=True), answers)

    def clairvoyant(self, grid: int, gigabytes: float) -> float:
        return clairvoyant.hit_rate(self.requests, grid, int(gigabytes * 1e9), SIZES)

    def divided(self, gigabytes: float, ratio: float) -> CacheBudget:
        return CacheBudget.divided(gigabytes * 1e9, ratio, self.page_size, SIZES)


def _on_grid(
    traffic: _Traffic, grid: int, sizes: Sequence[float], ratio: float, snapshots: int,
    behind: TierBudget | None,
) -> dict[str, float]:  # fmt: skip
    best = traffic.best(grid).hit_rate
    results = {"best_hit_rate": best}
    for size in sizes:
        at = traffic.divided(size, ratio)
        done = traffic.replay(grid, at, snapshots, behind)
        results[f"hit_rate_{size:g}"] = done.hit_rate
        if behind is not None:
            results[f"of_best_{size:g}"] = done.hit_rate / (best or 1.0)
            results[f"host_{size:g}"] = done.host / (done.hit or 1)
            results[f"file_{size:g}"] = done.file / (done.hit or 1)
            results[f"pools_{size:g}"] = traffic.replay(grid, at, snapshots).hit_rate
        results[f"short_of_slots_{size:g}"] = done.short_of_slots
        results[f"one_{size:g}"] = traffic.replay(grid, at, 1).hit_rate
        results[f"clairvoyant_{size:g}"] = traffic.clairvoyant(grid, size)
    results["hit_rate"] = results[f"hit_rate_{max(sizes):g}"]
    return results


def _on_cluster(
    traffic: _Traffic, grid: int, gigabytes: float, ratio: float, snapshots: int, workers: int,
    policies: Sequence[str],
) -> dict[str, float]:  # fmt: skip
    at = traffic.divided(gigabytes, ratio)
    best = traffic.best(grid)
    results = {"best_hit_rate": best.hit_rate}
    pooled = traffic.replay(grid, at.times(workers), snapshots)
    results["of_best_pooled"] = pooled.hit_rate / (best.hit_rate or 1.0)
    clairvoyant = traffic.clairvoyant(grid, workers * gigabytes)
    results["of_best_clairvoyant"] = clairvoyant / (best.hit_rate or 1.0)
    for load in LOADS:
        for policy in policies:
            done = traffic.placed(grid, at, snapshots, workers, policy, load)
            name = f"{policy}_{load:g}"
            results[f"hit_rate_{name}"] = done.hit_rate
            results[f"of_best_{name}"] = done.hit_rate / (best.hit_rate or 1.0)
            for cause, tokens in asdict(done.missed).items():
                results[f"missed_{cause}_{name}"] = tokens / (best.hit or 1)
            results[f"imbalance_{name}"] = done.imbalance
            results[f"ttft_p50_ms_{name}"] = done.wait_ms(50)
            results[f"ttft_p99_ms_{name}"] = done.wait_ms(99)
        done = traffic.placed(grid, at, snapshots, workers, "prefix_aware", load, workers)
        results[f"hit_rate_ranks_{load:g}"] = done.hit_rate
        results[f"rank_share_ranks_{load:g}"] = done.rank_share
        results[f"ttft_p50_ms_ranks_{load:g}"] = done.wait_ms(50)
        results[f"ttft_p99_ms_ranks_{load:g}"] = done.wait_ms(99)
    return results


@click.command("prefix")
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True
)
@click.option(
    "--budgets", type=Numbers(), default="8,32,128,512", show_default=True,
    help="Gigabytes, separated by commas.",
)  # fmt: skip
@click.option("--page-size", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--grid",
    type=click.IntRange(1),
    default=None,
    help="Tokens between the depths of snapshots; when left out, the grid that the "
    f"trace's blocks allow ({TRACE_GRID}), and beside it the model's ({MODEL_GRID}).",
)
@click.option(
    "--snapshots",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Most snapshots that one prompt leaves.",
)
@click.option("--mamba-full-memory-ratio", "ratios", type=Numbers(), default="1",
              show_default=True, help="Bytes of snapshots divided by bytes of pages; several, "
              "separated by commas, are compared, and the first is used elsewhere.")  # fmt: skip
@click.option("--cluster", is_flag=True, help="Replay on several prefill workers, each with the "
              "largest of --budgets, behind the router's own placement.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), default=16, show_default=True,
              help="Prefill workers, with --cluster.")  # fmt: skip
@click.option("--host-gb", type=click.FloatRange(0), default=0.0, help="Gigabytes of a host's tier "
              "behind each of --budgets, divided as they are; 0: none.")  # fmt: skip
@click.option("--file-gb", type=click.FloatRange(0), default=0.0,
              help="Gigabytes of files behind the host's tier; 0: none.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=None, help="Only the first ones.")
@seed_option
@json_option
def prefix(
    trace: Path,
    budgets: tuple[float, ...],
    page_size: int,
    grid: int | None,
    snapshots: int,
    ratios: tuple[float, ...],
    cluster: bool,
    workers: int,
    host_gb: float,
    file_gb: float,
    requests: int | None,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Replay a trace against the prefix cache alone; no model runs.

    hit_rate: share of prompt tokens that need no computing, at the largest budget. best_hit_rate:
    with an infinite cache and a snapshot at every grid depth. hit_rate_<GB>: at each budget;
    one_<GB>: with one snapshot a prompt; clairvoyant_<GB>: of a cache of that size that knows the
    future; short_of_slots_<GB>: the share of evicted bytes that went because slots, not pages, ran
    short. grid256_…: with snapshots at the depths that the model allows, where the trace cannot
    tell that prompts are equal. hit_rate_<GB>_ratio_<r>: by the division of memory.

    With --host-gb and --file-gb, hit_rate_<GB> counts what comes back from there, and one infinite
    cache would have hit the same where of_best_<GB> is 1. host_<GB>, file_<GB>: the shares of those
    hits that came from the host's tier and from files; pools_<GB>: hit_rate_<GB> without tiers.
    Copies are over at once, so no time is in this: `baton bench tiers` measures theirs.

    With --cluster: hit_rate_<policy>_<load>, and of_best_…, its share of best_hit_rate, of each
    policy at each load. At a load of 1, workers with an infinite cache could just keep up with it.
    missed_<cause>_…: the rest of best_hit_rate: not_begun: computed for nobody yet; no_snapshot:
    computed, and no snapshot made so deep; evicted; elsewhere: on other workers. of_best_pooled:
    one cache with the memory of all workers; of_best_clairvoyant: that knows the future.
    imbalance_…: tokens that the busiest worker computes, divided by the mean. ttft_…: from a
    prompt's arrival to its first token, on a simulated clock. …_ranks_<load>: prefix_aware with as
    many decode ranks, which write the answers and compute prompts too (--prefill-here auto);
    rank_share: the share of prompts that they compute.
    """
    for each in (grid or TRACE_GRID, grid or MODEL_GRID):
        if each % page_size:
            raise click.UsageError(
                f"snapshots lie at page boundaries: the grid of {each} tokens must be a multiple "
                f"of --page-size; got {page_size}"
            )
    if file_gb and not host_gb:
        raise click.UsageError("files lie behind a host's tier: --file-gb needs --host-gb")
    if cluster and host_gb:
        raise click.UsageError("--host-gb is for one worker: leave it out with --cluster")
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    traffic = _Traffic(read(trace, requests), TokenRuns(seed), page_size)
    main = TRACE_GRID if grid is None else grid
    results = {"requests": float(len(traffic.requests))}
    config = {"trace": trace.name, "page_size": page_size, "grid": main, "seed": seed,
              "snapshots": snapshots, "mamba_full_memory_ratio": ratios[0],
              "state_bytes": SIZES.state, "kv_bytes": SIZES.kv}  # fmt: skip
    if cluster:
        results |= _on_cluster(
            traffic, main, max(budgets), ratios[0], snapshots, workers, sorted(POLICIES)
        )
        config |= {"workers": workers, "gigabytes": max(budgets)}
        show(Report("prefix", config, results), json_wanted)
        return
    behind = None
    if host_gb:
        behind = TierBudget(traffic.divided(host_gb, ratios[0]), int(file_gb * 1e9))
        config |= {"host_gb": host_gb, "file_gb": file_gb}
    results |= _on_grid(traffic, main, budgets, ratios[0], snapshots, behind)
    if len(ratios) > 1:
        for size in budgets:
            for ratio in ratios:
                done = traffic.replay(main, traffic.divided(size, ratio), snapshots)
                results[f"hit_rate_{size:g}_ratio_{ratio:g}"] = done.hit_rate
                results[f"short_of_slots_{size:g}_ratio_{ratio:g}"] = done.short_of_slots
    if grid is None:
        model = _on_grid(traffic, MODEL_GRID, budgets, ratios[0], snapshots, behind)
        results |= {f"grid{MODEL_GRID}_{name}": value for name, value in model.items()}
    show(Report("prefix", config, results), json_wanted)
