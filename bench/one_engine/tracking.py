"""`baton bench tracking`: the price of snapshots of decoding rows."""

import random
import time
from dataclasses import replace
from pathlib import Path

import click
import torch

from baton.bench.contract import Report, json_option, seed_option, show, summarise
from baton.bench.machine import cores
from baton.core.sampling_params import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.schedule.request import RequestSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PROMPT = 64  # tokens of a prompt, at least: lengths are spread over an interval


@click.command("tracking")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path),
              required=True, help="A Hugging Face model folder.")  # fmt: skip
@click.option("--intervals", default="64,1024", show_default=True,
              help="Two values of --mamba-track-interval.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
@click.option("--steps", type=click.IntRange(64), default=192, show_default=True)
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

    tok_s_<interval>: tokens a second over all steps, tracked ones among them. ratio: the first
    interval's speed over the second's, turn by turn. tracked_<interval>: snapshots a step.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    often, seldom = (int(interval) for interval in intervals.split(","))
    config = EngineConfig(
        model=model,
        dtype=_DTYPES[dtype],
        threads=cores(),
        max_running=batch,
        max_model_len=_PROMPT + often + steps + 8,
    )
    engines = {
        each: Engine.load(replace(config, mamba_track_interval=each)) for each in (often, seldom)
    }
    for engine in engines.values():
        _turn(engine, batch, 8, often, random.Random(seed))
    results = []
    for turn in range(turns):
        found: dict[str, float] = {}
        order = sorted(engines, reverse=bool(turn % 2))
        for interval in order:
            rng = random.Random(seed + turn)
            tok_s, tracked = _turn(engines[interval], batch, steps, often, rng)
            found |= {f"tok_s_{interval}": tok_s, f"tracked_{interval}": tracked}
        found["ratio"] = found[f"tok_s_{often}"] / found[f"tok_s_{seldom}"]
        results.append(found)
    grids = [engine.plan.grids.decode for engine in engines.values()]
    settings = {
        "model": str(model), "dtype": dtype, "batch": batch, "steps": steps, "turns": turns,
        "seed": seed, "grids": grids,
    }  # fmt: skip
    show(Report("tracking", settings, summarise(results)), json_wanted)


def _turn(
    engine: Engine, batch: int, steps: int, spread: int, rng: random.Random
) -> tuple[float, float]:
    """Decode `batch` rows for `steps` steps. Returns tokens a second, and snapshots a step."""
    engine.flush_cache()
    vocab = engine.model_config.vocab_size
    sampling = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
    names = [f"bench-{row}" for row in range(batch)]
    for name in names:
        length = _PROMPT + rng.randrange(spread)
        engine.submit(
            RequestSpec(name, tuple(rng.randrange(vocab) for _ in range(length)), sampling)
        )
    while engine.status().waiting:
        engine.step()
    for _ in range(3):
        engine.step()
    before = engine.counters.snapshots_written
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    seconds = time.perf_counter() - began
    tracked = engine.counters.snapshots_written - before
    for name in names:
        engine.cancel(name, "measured")
    while engine.has_work:
        engine.step()
    return batch * steps / seconds, tracked / steps
