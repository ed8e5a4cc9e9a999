"""Prompts and answers as long as those of a trace, or of a synthetic mix with its statistics."""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from baton.bench.prefix.trace import read

MEDIAN_INPUT, MEAN_INPUT = 6_900, 12_000
MAX_INPUT, MAX_OUTPUT = 120_000, 700
"""Mooncake's conversation trace: log-normal prompts, answers evenly up to 700 tokens."""


@dataclass(frozen=True)
class Lengths:
    """One request's lengths in tokens."""

    prompt: int
    answer: int


def draw_mix(trace: Path | None, count: int, rng: random.Random) -> list[Lengths]:
    """Draw requests of a trace, or of the synthetic mix where there is none."""
    if trace is not None:
        rows = rng.choices(read(trace), k=count)
        return [Lengths(row.input_length, row.output_length) for row in rows]
    sigma = math.sqrt(2 * math.log(MEAN_INPUT / MEDIAN_INPUT))
    return [
        Lengths(
            min(round(rng.lognormvariate(math.log(MEDIAN_INPUT), sigma)) + 1, MAX_INPUT),
            rng.randint(2, MAX_OUTPUT),
        )
        for _ in range(count)
    ]
