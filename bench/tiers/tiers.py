"""`baton bench tiers`: copies of prefixes between an engine's pools, its host's tier and files."""

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import torch

from baton.bench.contract import (
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.machine import cores
from baton.bench.one_engine.paired import middle
from baton.bench.one_engine.rival import PROMPT, SLICE, Rival
from baton.bench.tiers import file_copies, host_copies
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TIER_BYTES = 1 << 28  # of each kind that the model has; the oldest copies give way


@click.command("tiers")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A model folder, to time steps with; none: copies alone.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
@click.option("--interval", type=click.IntRange(1), default=64, show_default=True,
              help="--mamba-track-interval: each row leaves a snapshot so often.")  # fmt: skip
@click.option("--steps", type=click.IntRange(64), default=192, show_default=True,
              help="Steps of each engine in a turn; rounded down to whole slices.")  # fmt: skip
@click.option("--turns", type=click.IntRange(3), default=10, show_default=True)
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where files are written; a temporary folder when left out.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def tiers(
    model: Path | None,
    dtype: str,
    batch: int,
    interval: int,
    steps: int,
    turns: int,
    folder: Path | None,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure copies into the host's tier and back between pools on a CPU, and decode steps with
    them under way.

    write_gb_s, load_gb_s: one prefix of 144 MB of state and 64 MiB of KV in pages anywhere, by the
    tier's own thread; copy_gb_s: as many bytes in one piece, in turn; write_share, load_share: of
    that. file_write_gb_s, file_load_gb_s: the same prefix into a file, synced, and back; read_gb_s:
    a plain read of it, both from the page cache; file_load_share: of that; digest_gb_s: the digests
    in both, alone.

    With --model, itl_ratio: the time of a decode step with write-behind over one without, the
    median of all pairs of slices of two engines that decode the same prompts in turns; _low, _high:
    where that median lies with 95 % confidence. saved: snapshots that were copied a step.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    results = summarise([_copied(seed + number, folder) for number in range(repeats)])
    plain = ("copy_gb_s", "copy_gb_s_spread", "read_gb_s", "read_gb_s_spread")
    limits = {name: results.pop(name) for name in plain}
    if model is not None:
        config = EngineConfig(
            model=model,
            dtype=_DTYPES[dtype],
            threads=cores(),
            max_running=batch,
            max_model_len=PROMPT + interval + steps + 8,
            mamba_track_interval=interval,
        )
        results |= _beside_steps(config, batch, steps, turns, seed)
    settings = {
        "model": None if model is None else str(model), "dtype": dtype, "batch": batch,
        "interval": interval, "steps": steps, "turns": turns, "repeats": repeats, "seed": seed,
    }  # fmt: skip
    show(Report("tiers", settings, results, limits), json_wanted)


def _copied(seed: int, folder: Path | None) -> dict[str, float]:
    """Return the rates of all copies, each made once. folder: of files; None: a temporary one."""
    with TemporaryDirectory(dir=folder) as place:
        return host_copies.measure(seed) | file_copies.measure(Path(place), seed)


def _beside_steps(
    config: EngineConfig, batch: int, steps: int, turns: int, seed: int
) -> dict[str, float]:
    """Return the ratio of the times of steps, and how much was copied meanwhile."""
    off = Engine.load(config)
    kinds = off.plan.model_config
    on = Engine.load(
        replace(
            config,
            host_cache_bytes=_TIER_BYTES if kinds.attention else 0,
            host_cache_state_bytes=_TIER_BYTES if kinds.recurrent else 0,
        )
    )
    ratios: list[float] = []
    saved = 0
    for turn in range(-1, turns):  # the first touches the memory, which costs more than a step
        rng = random.Random(seed + turn)
        spread = config.mamba_track_interval
        rivals = [Rival(engine, batch, steps, spread, rng) for engine in (on, off)]
        before = on.counters.host_snapshots_saved
        for number in range(steps // SLICE):
            for rival in rivals[:: -1 if number % 2 else 1]:
                rival.decode_slice()
        if turn >= 0:
            ratios += [a / b for a, b in zip(rivals[0].wall, rivals[1].wall, strict=True)]
            saved += on.counters.host_snapshots_saved - before
        for rival in rivals:
            rival.end()
    on.close()
    off.close()
    timed = turns * (steps // SLICE) * SLICE
    return {**middle("itl_ratio", ratios), "saved": saved / timed}
