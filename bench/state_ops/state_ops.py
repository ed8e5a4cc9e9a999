"""`baton bench state_ops`: CPU time of the engine's host side, without a model."""

import random
from pathlib import Path

import click

from baton.bench.contract import (
    Peer,
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.prefix.trace import TraceRequest, read
from baton.bench.state_ops import cache, contexts, schedule, slots

RUNNING = (1, 32, 256, 1024)
WIDE = 256  # rows of the steps that are measured at every length


@click.command("state_ops")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Trace for match and insert; drawn from the seed when left out.")  # fmt: skip
@click.option("--sglang-allocator", "sglang", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="mamba.py of SGLang's allocators, measured in turn with ours.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def state_ops(
    trace: Path | None,
    sglang: Path | None,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure slots, prefix cache and scheduling on the host, in CPU time of the thread.

    slot_alloc_free_us: one slot taken and freed; slot_group_us: in an admission pass of 8;
    slot_fenced_us: with overlap's fence and a forward's completion. match_insert_us_per_block: a
    512-token block of the trace through match, locks, page allocation, insertion and eviction, at
    page size 64 (_16: at 16), with keys made before; token_key_us_per_block: making one.

    schedule_ms_N: a step of the engine's own thread with N decoding requests, from plan to process,
    with growing pages, donated snapshots and garbage collection; _wall_p50 and _wall_p99: by the
    wall clock. pack_ms_N: the forward thread's part without a model: packing, the copy, greedy
    sampling.

    step_host_ms_N_at_L: both parts of a step of N rows with L tokens each;
    step_host_penalised_ms_N_at_L: of rows with penalties and outputs of L tokens.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    requests = cache.conversations(rng) if trace is None else read(trace)
    allocator = None if sglang is None else slots.load_sglang(sglang)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(repeats):
        measured, peer = slots.measure(allocator)
        ours.append(measured | _cache(requests, rng) | _schedule(rng) | _contexts())
        theirs.append(peer)
    sglang_report: Peer = {"skipped": "no file named; --sglang-allocator .../allocator/mamba.py"}
    if allocator is not None:
        sglang_report = summarise(theirs)
    config = {
        "trace": "drawn from the seed" if trace is None else trace.name,
        "requests": len(requests),
        "slots": slots.SLOTS,
        "group": slots.GROUP,
        "cache_gb": cache.GIGABYTES,
        "steps": schedule.STEPS,
        "repeats": repeats,
        "seed": seed,
    }
    peers = {"sglang": sglang_report}
    show(Report("state_ops", config, summarise(ours), peers=peers), json_wanted)


def _cache(trace: list[TraceRequest], rng: random.Random) -> dict[str, float]:
    seed = rng.randrange(2**31)
    return {
        "match_insert_us_per_block": cache.match_insert_us(trace, seed, 64),
        "match_insert_us_per_block_16": cache.match_insert_us(trace, seed, 16),
        "token_key_us_per_block": cache.token_key_us(trace, seed),
    }


def _schedule(rng: random.Random) -> dict[str, float]:
    results: dict[str, float] = {}
    for running in RUNNING:
        times = schedule.measure(running, rng)
        results[f"schedule_ms_{running}"] = times.schedule
        results[f"schedule_wall_p50_ms_{running}"] = times.wall_p50
        results[f"schedule_wall_p99_ms_{running}"] = times.wall_p99
        results[f"pack_ms_{running}"] = times.pack
    return results


def _contexts() -> dict[str, float]:
    """Measure steps of WIDE rows at every length, and of many more at the shorter ones."""
    all_lengths, shorter = contexts.LENGTHS, contexts.LENGTHS[:2]
    return {
        f"{name}_{running}_at_{length}": ms
        for name, running, lengths, penalised in (
            ("step_host_ms", WIDE, all_lengths, False),
            ("step_host_penalised_ms", WIDE, all_lengths, True),
            ("step_host_ms", RUNNING[-1], shorter, False),
        )
        for length, ms in contexts.step_host_ms(running, lengths, penalised).items()
    }
