"""`baton bench tp`: a replica of several ranks beside one rank with as many threads."""

import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import click
import torch

from baton.bench.contract import Report, json_option, seed_option, show
from baton.bench.machine import cores
from baton.bench.one_engine.paired import quartiles
from baton.core.sampling_params import SamplingParams
from baton.core.supervised import child_thread
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.kernels.collective import Meeting, all_reduce_native, shared_words
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PROMPT = 32  # tokens
_SUMS = 200  # in one measurement


@click.command("tp")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path),
              required=True, help="A Hugging Face model folder.")  # fmt: skip
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="float32", show_default=True)
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True)
@click.option("--batches", default="1,8", show_default=True, help="Requests at once.")
@click.option("--tokens", type=click.IntRange(4), default=64, show_default=True,
              help="Tokens of an answer.")  # fmt: skip
@click.option("--turns", type=click.IntRange(3), default=10, show_default=True)
@seed_option
@json_option
def tp(
    model: Path,
    dtype: str,
    ranks: int,
    batches: str,
    tokens: int,
    turns: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure answers of one rank with a thread a core, and of several ranks that share the cores,
    in turns.

    tok_s_<ranks>_<batch>: tokens a second. ratio_<batch>: those of several ranks over those of one,
    the median of all turns; _low and _high: the quartiles. same_<batch>: of all answers, those that
    are the same. sums_<batch>: collectives a step; sum_us_<batch>: microseconds of one between two
    threads, over as many values as a step's; sum_share_<batch>: of a step. The limit
    copy_us_<batch> is a plain copy of the same bytes.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    sizes = [int(size) for size in batches.split(",")]
    config = EngineConfig(
        model=model,
        dtype=_DTYPES[dtype],
        threads=cores(),
        max_running=max(sizes),
        max_model_len=_PROMPT + tokens + 8,
        memory_fraction=0.2,
        prefix_caching=False,
    )
    alone = Engine.load(config)
    _answers(alone, _prompts(alone, random.Random(seed), 1), tokens)  # its threads are started
    together = Engine.load(replace(config, tp=ranks))
    found: dict[str, list[float]] = {}
    limits: dict[str, float] = {}
    for turn in range(-1, turns):  # the first touches memory and records steps
        for size in sizes:
            prompts = _prompts(alone, random.Random(f"{seed} {turn} {size}"), size)
            one, answers = _answers(alone, prompts, tokens)
            before = _meetings(together)
            several, others = _answers(together, prompts, tokens)
            if turn < 0:
                continue
            steps = tokens  # one of the prompts, then a token each
            same = sum(a == b for a, b in zip(answers, others, strict=True))
            values = {
                "tok_s_1": size * tokens / one,
                f"tok_s_{ranks}": size * tokens / several,
                "ratio": one / several,
                "same": same / size,
                "sums": (_meetings(together) - before) / steps,
                "sum_us": _sum_us(size * alone.plan.model_config.hidden_size),
            }
            values["sum_share"] = values["sums"] * values["sum_us"] * 1e-6 / (several / steps)
            for name, value in values.items():
                found.setdefault(f"{name}_{size}", []).append(value)
    together.close()
    alone.close()
    for size in sizes:
        limits[f"copy_us_{size}"] = _copy_us(size * alone.plan.model_config.hidden_size)
    settings = {
        "model": str(model), "dtype": dtype, "ranks": ranks, "tokens": tokens, "turns": turns,
        "seed": seed,
    }  # fmt: skip
    show(Report("tp", settings, quartiles(found, "ratio"), limits), json_wanted)


def _prompts(engine: Engine, rng: random.Random, count: int) -> list[tuple[int, ...]]:
    vocab = engine.plan.model_config.vocab_size
    return [tuple(rng.randrange(vocab) for _ in range(_PROMPT)) for _ in range(count)]


def _answers(
    engine: Engine, prompts: list[tuple[int, ...]], tokens: int
) -> tuple[float, list[tuple[int, ...]]]:
    """Return the seconds that the answers take, and the answers."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    began = time.perf_counter()
    outputs = engine.generate(prompts, sampling)
    return time.perf_counter() - began, [tuple(output.token_ids) for output in outputs]


def _meetings(engine: Engine) -> int:
    """Return the collectives that the ranks have met for."""
    assert engine.followers is not None
    return engine.followers.meetings


def _sum_us(count: int) -> float:
    """Return the microseconds of a sum of `count` values between two threads."""
    library = load()
    if library is None:
        raise click.ClickException("the native kernels, which are measured, are not available")
    shared = torch.zeros(shared_words(2, count), dtype=torch.int32)

    def run(rank: int) -> None:
        state, x = torch.zeros(2, dtype=torch.int64), torch.ones(count)
        meeting = Meeting(shared, state, rank, 2, count, 0, 60.0)
        native = Native(library)
        for _ in range(_SUMS):
            all_reduce_native(native, x, meeting)

    failures: list[Exception] = []
    other = child_thread(lambda: run(1), "rank 1", failures.append)
    began = time.perf_counter()
    run(0)
    taken = time.perf_counter() - began
    other.join()
    if failures:
        raise failures[0]
    return taken / _SUMS * 1e6


def _copy_us(count: int) -> float:
    """Return the microseconds of a copy of `count` values."""
    source, target = torch.ones(count), torch.empty(count)
    taken = []
    for _ in range(_SUMS):
        began = time.perf_counter()
        target.copy_(source)
        taken.append(time.perf_counter() - began)
    return median(taken) * 1e6
