"""Values on both sides of every limit that SamplingParams states."""

import math
from dataclasses import fields
from typing import Any

import numpy as np

from baton.core.limits import (
    MAX_INT32,
    FloatRange,
    IntRange,
    Texts,
    TokenBiases,
    TokenIds,
    float32,
)
from baton.core.sampling_params import SamplingParams

WITHOUT_LIMITS = {"include_stop", "ignore_eos", "grammar"}
"""Two truth values, and what `text` compiles."""
NO_NUMBERS = (math.nan, math.inf, -math.inf)


def next_float32(value: float, towards: float) -> float:
    """Return the float32 after `value` in the direction of `towards`."""
    return float(np.nextafter(np.float32(value), np.float32(towards)))


def boundary_values() -> list[tuple[str, Any, bool]]:
    """Return (parameter, value, whether it is legal) on both sides of each of its limits."""
    found: list[tuple[str, Any, bool]] = []
    for field in fields(SamplingParams):
        rule = field.metadata.get("rule")
        legal: list[object]
        wrong: list[object]
        match rule:
            case FloatRange(low, high):
                legal = [float32(low), float32(high)]
                wrong = [next_float32(low, -math.inf), next_float32(high, math.inf)]
                wrong += [-high - 1.0, 1e39, *NO_NUMBERS]
            case IntRange(low, high):
                legal, wrong = [low, high], [low - 1, high + 1, *NO_NUMBERS]
            case TokenIds(most):
                legal = [(), (0,), (3,) * most]
                wrong = [(3,) * (most + 1), (-1,), (MAX_INT32 + 1,)]
            case TokenBiases(most, largest):
                legal = [{}, {3: -largest, 4: largest}, dict.fromkeys(range(most), 1.0)]
                wrong = [dict.fromkeys(range(most + 1), 1.0), {-1: 1.0}, {MAX_INT32 + 1: 1.0}]
                wrong += [{3: next_float32(largest, math.inf)}, *({3: each} for each in NO_NUMBERS)]
            case Texts(most, longest):
                legal = [(), ("x" * longest,), ("x",) * most]
                wrong = [("",), ("x" * (longest + 1),), ("x",) * (most + 1)]
            case _:
                assert field.name in WITHOUT_LIMITS, f"{field.name} has no limits"
                continue
        found += [(field.name, value, True) for value in legal]
        found += [(field.name, value, False) for value in wrong]
    return found


def together_with(name: str) -> dict[str, object]:
    """Return what must be given beside `name` for its whole range to be legal."""
    return {"max_tokens": MAX_INT32} if name == "min_tokens" else {}
