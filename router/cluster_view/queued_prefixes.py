"""The prefixes that prompts have in common while they wait at the router."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from baton.text.prefix_digest import PromptPrefixes

FINE = 64
"""Depths at which a prompt is compared on the grid itself; behind them the steps double."""
MOST_JUNCTIONS = 3
"""Snapshots that one prompt is asked for: those where most of the others go another way."""


class QueuedPrefixes:
    """The prefixes on the grid of the prompts that wait."""

    def __init__(self) -> None:
        self._waiting: Counter[int] = Counter()  # prompts, by the digest of each prefix
        self.prompts = 0
        """Prompts that wait."""

    @contextmanager
    def waiting(self, prompt: PromptPrefixes, grid: int) -> Iterator[None]:
        """Count a prompt while it waits. grid: tokens; 0: nobody keeps states."""
        digests = prompt.digests(depths(len(prompt), grid))
        self._waiting.update(digests)
        self.prompts += 1
        try:
            yield
        finally:
            self.prompts -= 1
            self._waiting.subtract(digests)
            for digest in digests:
                if not self._waiting[digest]:
                    del self._waiting[digest]

    def junctions(self, prompt: PromptPrefixes, grid: int, cached: int = 0) -> list[int]:
        """Return the depths above `cached` at which prompts that wait go another way than this one,
        rising; of many, those where most do.
        """
        if not self._waiting:
            return []
        compared = depths(len(prompt), grid)
        shared = [(0, 0)]
        for depth, digest in zip(compared, prompt.digests(compared), strict=True):
            shared.append((depth, self._waiting.get(digest, 0)))
            if not shared[-1][1]:
                break
        else:
            shared.append((len(prompt), 0))
        leave = {
            depth: here - there
            for (depth, here), (_, there) in pairwise(shared)
            if here > there and depth > cached
        }
        return sorted(sorted(leave, key=lambda depth: (-leave[depth], -depth))[:MOST_JUNCTIONS])

    def __len__(self) -> int:
        """Return the number of different prefixes."""
        return len(self._waiting)


def depths(tokens: int, grid: int) -> list[int]:
    """Return the depths at which prompts of that length are compared, rising. They depend on the
    depth alone, so that all prompts have them in common.
    """
    found: list[int] = []
    step = end = grid
    while grid and step <= tokens:
        end = FINE * step
        found += range((found[-1] if found else 0) + step, min(end, tokens) + 1, step)
        if end >= tokens:
            break
        step *= 2
    return found
