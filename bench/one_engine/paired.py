"""The results of turns that each compare two engines."""

from math import comb
from statistics import median

_CONFIDENCE = 0.95


def quartiles(found: dict[str, list[float]], spread: str) -> dict[str, float]:
    """Return the medians, and the quartiles of what begins with `spread`."""
    results: dict[str, float] = {}
    for key, values in found.items():
        results[key] = median(values)
        if key.startswith(spread):
            ordered = sorted(values)
            results[f"{key}_low"] = ordered[len(ordered) // 4]
            results[f"{key}_high"] = ordered[-1 - len(ordered) // 4]
    return results


def least_median(values: list[float]) -> float | None:
    """Return what the median of such turns is at least, with 95 % confidence, by a one-sided sign
    test: it supposes nothing of how turns are distributed. None for fewer than five turns.
    """
    count, lower = len(values), 0
    chance = 0.5**count  # that at most `lower` of the turns are below the median
    while chance <= 1 - _CONFIDENCE:
        lower += 1
        chance += comb(count, lower) * 0.5**count
    return sorted(values)[lower - 1] if lower else None


def middle(key: str, values: list[float]) -> dict[str, float]:
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
