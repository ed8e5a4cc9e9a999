"""`baton bench state_ops`: what the engine's host side costs, without a model."""

import random
from pathlib import Path

import click

from baton.bench import state_ops_cache, state_ops_schedule, state_ops_slots
from baton.bench.contract import (
    Peer,
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.trace import TraceRequest, read

RUNNING = (1, 32, 256)


@click.command("state_ops")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="For match and insert; drawn from the seed when left out.")  # fmt: skip
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
    """Slots, prefix cache and scheduling on the host; CPU time of the thread, since nothing here
    waits.

    slot_alloc_free_us: one slot taken and given back; slot_group_us: in an admission pass of 8;
    slot_fenced_us: with overlap's fence and a forward's completion. match_insert_us_per_block: a
    512-token block of the trace through match, locks, page allocation, insertion and eviction, at
    page size 64 (_16: at 16), keys made beforehand; token_key_us_per_block: making one.
    schedule_ms_N: a step of the engine's own thread with N decoding requests: plan, launch,
    collect, process, pages that grow and snapshots that are tracked and donated, the interpreter's
    collections; _wall_p50 and _wall_p99: by the clock on the wall. pack_ms_N: the forward thread's
    part of it without a model: packing, the copy, greedy sampling.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    rng = random.Random(seed)
    requests = state_ops_cache.conversations(rng) if trace is None else read(trace)
    allocator = None if sglang is None else state_ops_slots.load_sglang(sglang)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(repeats):
        slots, peer = state_ops_slots.measure(allocator)
        ours.append(slots | _cache(requests, rng) | _schedule(rng))
        theirs.append(peer)
    sglang_report: Peer = {"skipped": "no file named; --sglang-allocator .../allocator/mamba.py"}
    if allocator is not None:
        sglang_report = summarise(theirs)
    config = {
        "trace": "drawn from the seed" if trace is None else trace.name,
        "requests": len(requests),
        "slots": state_ops_slots.SLOTS,
        "group": state_ops_slots.GROUP,
        "cache_gb": state_ops_cache.GIGABYTES,
        "steps": state_ops_schedule.STEPS,
        "repeats": repeats,
        "seed": seed,
    }
    peers = {"sglang": sglang_report}
    show(Report("state_ops", config, summarise(ours), peers=peers), json_wanted)


def _cache(trace: list[TraceRequest], rng: random.Random) -> dict[str, float]:
    seed = rng.randrange(2**31)
    return {
        "match_insert_us_per_block": state_ops_cache.match_insert_us(trace, seed, 64),
        "match_insert_us_per_block_16": state_ops_cache.match_insert_us(trace, seed, 16),
        "token_key_us_per_block": state_ops_cache.token_key_us(trace, seed),
    }


def _schedule(rng: random.Random) -> dict[str, float]:
    results: dict[str, float] = {}
    for running in RUNNING:
        times = state_ops_schedule.measure(running, rng)
        results[f"schedule_ms_{running}"] = times.schedule
        results[f"schedule_wall_p50_ms_{running}"] = times.wall_p50
        results[f"schedule_wall_p99_ms_{running}"] = times.wall_p99
        results[f"pack_ms_{running}"] = times.pack
    return results
