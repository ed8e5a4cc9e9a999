"""`baton bench tracking`: the price of snapshots of decoding rows."""

import random
from dataclasses import replace
from pathlib import Path

import click
import torch

from baton.bench.contract import Report, json_option, seed_option, show, summarise
from baton.bench.machine import cores
from baton.bench.one_engine.paired import middle
from baton.bench.one_engine.rival import PROMPT, SLICE, Rival
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@click.command("tracking")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path),
              required=True, help="A Hugging Face model folder.")  # fmt: skip
@click.option("--intervals", default="64,1024", show_default=True,
              help="Two values of --mamba-track-interval.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
@click.option("--steps", type=click.IntRange(64), default=192, show_default=True,
              help="Steps of each engine in a turn; rounded down to whole slices.")  # fmt: skip
@click.option("--turns", type=click.IntRange(3), default=10, show_default=True)
@seed_option
@json_option
def tracking(
    model: Path,
    intervals: str,
    dtype: str,
    batch: int,
    steps: int,
    turns: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure decode steps of two engines in turns, which differ in how often they track.

    Both decode the same prompts at once, a slice of some steps each, in the order a b b a.
    tok_s_<interval>: tokens a second over all steps, tracked ones among them; tok_cpu_s_<interval>:
    a second of CPU time. ratio, cpu_ratio: the first interval's speed over the second's, the median
    of all pairs of slices; _low, _high: where that median lies with 95 % confidence.
    tracked_<interval>: snapshots a step.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    often, seldom = (int(interval) for interval in intervals.split(","))
    config = EngineConfig(
        model=model,
        dtype=_DTYPES[dtype],
        threads=cores(),
        max_running=batch,
        max_model_len=PROMPT + often + steps + 8,
    )
    engines = {
        each: Engine.load(replace(config, mamba_track_interval=each)) for each in (often, seldom)
    }
    rates: list[dict[str, float]] = []
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    for turn in range(
        -1, turns
    ):  # the first touches the slots: fresh memory costs more than a step
        rng = random.Random(seed + turn)
        rivals = {each: Rival(engine, batch, steps, often, rng) for each, engine in engines.items()}
        for number in range(steps // SLICE):
            order = (seldom, often) if number % 2 else (often, seldom)
            for interval in order:
                rivals[interval].decode_slice()
        if turn >= 0:
            a, b = rivals[often], rivals[seldom]
            rates.append({**a.rates(often), **b.rates(seldom)})
            ratios += [y / x for x, y in zip(a.wall, b.wall, strict=True)]
            cpu_ratios += [y / x for x, y in zip(a.cpu, b.cpu, strict=True)]
        for rival in rivals.values():
            rival.end()
    results = {**summarise(rates), **middle("ratio", ratios), **middle("cpu_ratio", cpu_ratios)}
    grids = [engine.plan.grids.decode for engine in engines.values()]
    settings = {
        "model": str(model), "dtype": dtype, "batch": batch, "steps": steps, "turns": turns,
        "seed": seed, "grids": grids,
    }  # fmt: skip
    show(Report("tracking", settings, results), json_wanted)
