"""The causes by which workers compute what one infinite cache for all would have served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.cache.snapshot_log import EVICTED
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.text.prefix_digest import PrefixDigest

_Depths = tuple[tuple[int, int], ...]  # (tokens, digest) of each prefix on the grid, rising


@dataclass
class Missed:
    """Tokens of prompts whose prefix came before, by what their worker lacked of it.

    A field is negative where prompts that came later ran first and left what a prompt could use.
    """

    not_begun: int = 0  # no worker had begun a prompt with it: they all waited
    no_snapshot: int = 0  # computed, with a snapshot less deep
    evicted: int = 0  # no worker had its snapshot any longer
    elsewhere: int = 0  # other workers had its snapshot


@dataclass(frozen=True)
class Sought:
    """A prompt's prefixes, and the deepest that an infinite cache has when it arrives."""

    depths: _Depths
    usable: _Depths  # those that leave a token to compute
    best: int


class Misses:
    """The prefixes of a trace on a grid, and which of them came, were begun, kept and evicted."""

    def __init__(self, grid: int) -> None:
        self._grid = grid
        self._came: set[int] = set()
        self._begun: set[int] = set()
        self._made: set[int] = set()
        self._holders: dict[int, set[int]] = {}  # digest to workers
        self.missed = Missed()

    def arrived(self, key: bytes) -> Sought:
        """Note a prompt that came."""
        depths = tuple(self._depths(key))
        usable = depths[:-1] if depths and _ends_at(depths[-1][0], key) else depths
        sought = Sought(depths, usable, _deepest(usable, self._came))
        self._came.update(digest for _, digest in depths)
        return sought

    def begun(self, sought: Sought, hit: int) -> None:
        """Note that a worker begins a prompt, of which it has `hit` tokens."""
        begun = _deepest(sought.usable, self._begun)
        made = max(_deepest(sought.usable, self._made), hit)
        kept = max(_deepest(sought.usable, self._holders), hit)
        self.missed.not_begun += sought.best - begun
        self.missed.no_snapshot += begun - made
        self.missed.evicted += made - kept
        self.missed.elsewhere += kept - hit
        self._begun.update(digest for _, digest in sought.depths)

    def changed(self, worker: int, changes: Mapping[int, int]) -> None:
        """Apply what `SnapshotLog.take` returned for a worker's cache."""
        for digest, depth in changes.items():
            if depth != EVICTED:
                self._made.add(digest)
                self._holders.setdefault(digest, set()).add(worker)
            elif digest in self._holders:
                self._holders[digest].discard(worker)
                if not self._holders[digest]:
                    del self._holders[digest]

    def _depths(self, key: bytes) -> list[tuple[int, int]]:
        digest, step, view = PrefixDigest(), self._grid * TOKEN_BYTES, memoryview(key)
        return [
            (end // TOKEN_BYTES, digest.add(view[end - step : end]))
            for end in range(step, len(key) + 1, step)
        ]


def _ends_at(depth: int, key: bytes) -> bool:
    return depth * TOKEN_BYTES == len(key)


def _deepest(depths: Sequence[tuple[int, int]], among: Mapping[int, object] | set[int]) -> int:
    return next((depth for depth, digest in reversed(depths) if digest in among), 0)
