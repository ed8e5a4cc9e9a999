"""`baton bench tracking`: the price of snapshots of decoding rows."""

import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch

from baton.bench.contract import Report, json_option, seed_option, show, summarise
from baton.bench.machine import cores
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PROMPT = 64  # tokens of a prompt, at least: lengths are spread over an interval
_SLICE = 16  # steps of one engine before the other goes on: less than what disturbs a machine lasts
_SETTLING = 3  # the first of a slice, not timed: the other's last step may still be under way


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
        max_model_len=_PROMPT + often + steps + 8,
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
        rivals = {
            each: _Rival(engine, batch, steps, often, rng) for each, engine in engines.items()
        }
        for number in range(steps // _SLICE):
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
    results = {**summarise(rates), **_middle("ratio", ratios), **_middle("cpu_ratio", cpu_ratios)}
    grids = [engine.plan.grids.decode for engine in engines.values()]
    settings = {
        "model": str(model), "dtype": dtype, "batch": batch, "steps": steps, "turns": turns,
        "seed": seed, "grids": grids,
    }  # fmt: skip
    show(Report("tracking", settings, results), json_wanted)


class _Rival:
    """Rows that decode in one engine, a slice at a time, with what each slice took."""

    def __init__(
        self, engine: Engine, batch: int, steps: int, spread: int, rng: random.Random
    ) -> None:
        """Submit `batch` prompts from `rng`, the same for all rivals, and start them.

        spread: their lengths differ by less than this many tokens.
        """
        self._engine = engine
        self._names = [f"bench-{row}" for row in range(batch)]
        self._tokens = batch * (_SLICE - _SETTLING)  # timed, of a slice
        self.wall: list[float] = []  # seconds a slice
        self.cpu: list[float] = []
        engine.flush_cache()
        state = rng.getstate()
        vocab = engine.plan.model_config.vocab_size
        sampling = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
        for name in self._names:
            length = _PROMPT + rng.randrange(spread)
            prompt = tuple(rng.randrange(vocab) for _ in range(length))
            engine.submit(RequestSpec(name, prompt, sampling))
        rng.setstate(state)
        while engine.status().waiting:
            engine.step()
        for _ in range(_SETTLING):
            engine.step()
        self._snapshots = engine.counters.snapshots_written

    def decode_slice(self) -> None:
        for _ in range(_SETTLING):
            self._engine.step()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(_SLICE - _SETTLING):
            self._engine.step()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def rates(self, interval: int) -> dict[str, float]:
        """Return tokens a second, of time and of CPU time, and snapshots a step."""
        slices = len(self.wall)
        written = self._engine.counters.snapshots_written - self._snapshots
        return {
            f"tok_s_{interval}": slices * self._tokens / sum(self.wall),
            f"tok_cpu_s_{interval}": slices * self._tokens / sum(self.cpu),
            f"tracked_{interval}": written / (slices * _SLICE),
        }

    def end(self) -> None:
        for name in self._names:
            self._engine.cancel(name, "measured")
        while self._engine.has_work:
            self._engine.step()


def _middle(key: str, values: list[float]) -> dict[str, float]:
    """Return the median, and the two values between which that of all such pairs lies with 95 %
    confidence: as many values are below it as heads are thrown with as many coins.
    """
    ordered, count = sorted(values), len(values)
    outside = max(0, int(count / 2 - 0.98 * count**0.5))
    return {
        key: median(ordered),
        f"{key}_low": ordered[outside],
        f"{key}_high": ordered[-1 - outside],
        f"{key}_spread": (ordered[-1] - ordered[0]) / median(ordered),
    }
