"""The measured seconds of steps, by how many rows decode and how many tokens each has."""

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from baton.engine.settings.choices import WINDOWS
from baton.engine.speculation.window_gain import CUT, PLAIN

_LATEST = 8  # measurements of a kind of step that are kept
_ENOUGH = 3  # of them before they count
_FIRST = 2  # measurements that are dropped: the first steps of a kind touch memory and record
# Steps after which measurements are forgotten, of plain steps and others, so that they are made
# again: the machine may have been busy, or be so now.
_OLD_PLAIN, _OLD = 256, 128
# What a token more in the window is taken to cost, as a part of a plain step, until it is measured:
# little, so that it is tried.
_GUESSED = 0.1
_LAYER = 0.05  # of a draft by the model's own layer beside it


class _Key(NamedTuple):
    """A kind of step. layered: drafts come from the model's own layer."""

    rows: int
    window: int
    layered: bool = False


class _Kind:
    """The measurements of steps of one kind."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_LATEST)
        self.seen = 0  # steps, those included that were dropped
        self.last = 0  # number of the newest, among all steps

    @property
    def usual(self) -> float:
        """The lower quartile: whatever else the machine does can only make a step longer."""
        return sorted(self.seconds)[len(self.seconds) // 4]


class StepCosts:
    """The seconds of steps without prompts."""

    def __init__(self) -> None:
        self._kinds: dict[_Key, _Kind] = {}
        self._steps = 0

    def add(self, rows: int, window: int, seconds: float, layered: bool = False) -> None:
        """Note a step of `rows` rows of `window` tokens, or CUT. layered: the model's own layer
        guessed drafts."""
        key = _Key(_about(rows), window, layered)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
        if not self._fresh(kind, window):
            kind.seconds.clear()
        self._steps += 1
        kind.seen, kind.last = kind.seen + 1, self._steps
        if kind.seen > _FIRST:
            kind.seconds.append(seconds)

    def knows_plain(self, rows: int) -> bool:
        """Return true if plain steps of about so many rows are measured."""
        return self._known(_Key(_about(rows), PLAIN))

    def ratio(self, rows: int, window: int, layered: bool = False) -> float:
        """Return the cost of a step of `window` tokens a row, as a multiple of a plain one's: as
        measured with the nearest number of rows where both are known. Where they are not, a guess
        by what is known of other windows. Infinite where plain steps of so many rows are to be
        measured yet.
        """
        wanted = _Key(_about(rows), window, layered)
        measured = self._measured(wanted)
        if measured is not None:
            return measured
        if window == CUT:
            return 1.0
        return 1.0 + self._token(wanted) * (window - 1)

    def spent(self, rows: int, window: int, seconds: float, layered: bool = False) -> float | None:
        """Return what a step has cost, as a multiple of a plain one's; None where plain steps are
        not known, or it was one of the first of its kind.

        seconds: count until such steps are measured: later ones may be disturbed.
        """
        key = _Key(_about(rows), window, layered)
        measured, plain = self._measured(key), _Key(key.rows, PLAIN)
        if measured is not None:
            return measured
        kind = self._kinds.get(key)
        if kind is None or not kind.seconds or not self._known(plain):
            return None
        return min(seconds / self._kinds[plain].usual, max(2.0, float(window)))

    def _token(self, wanted: _Key) -> float:
        """Return the guessed cost of a token more in the window."""
        token = _GUESSED if self._known(_Key(wanted.rows, PLAIN)) else math.inf
        layer = _LAYER if wanted.layered else 0.0
        sizes = sorted(WINDOWS[1:], key=lambda size: abs(size - wanted.window))
        for key in (wanted, wanted._replace(layered=False)):
            for size in sizes:
                measured = self._measured(key._replace(window=size))
                if measured is not None:
                    more = layer if key.layered is not wanted.layered else 0.0
                    return max(measured - 1.0, 0.0) / (size - 1) + more
        return token + layer

    def _measured(self, wanted: _Key) -> float | None:
        known = [
            key
            for key in self._kinds
            if key[1:] == wanted[1:] and self._known(key) and self._known(_Key(key.rows, PLAIN))
        ]
        if not known:
            return None
        nearest = min(known, key=lambda key: abs(key.rows - wanted.rows))
        plain = self._kinds[_Key(nearest.rows, PLAIN)]
        cost = max(kind.usual for kind in self._up_to(nearest)) / plain.usual
        return max(1.0, cost)  # less is what others on the machine have made of it

    def _up_to(self, wanted: _Key) -> Iterator[_Kind]:
        """Yield a kind that is known, and those of narrower windows that were measured later: where
        these have become dear, it costs no less."""
        mine = self._kinds[wanted]
        yield mine
        for key, kind in self._kinds.items():
            if PLAIN < key.window < wanted.window and key == wanted._replace(window=key.window):
                if kind.last > mine.last and self._known(key):
                    yield kind

    def _known(self, key: _Key) -> bool:
        kind = self._kinds.get(key)
        return kind is not None and len(kind.seconds) >= _ENOUGH and self._fresh(kind, key.window)

    def _fresh(self, kind: _Kind, window: int) -> bool:
        return self._steps - kind.last < (_OLD_PLAIN if window == PLAIN else _OLD)


def _about(rows: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16 …: steps of so many rows cost nearly the same."""
    power = 1 << max(rows - 1, 1).bit_length()
    return rows if rows < 3 else power * 3 // 4 if rows <= power * 3 // 4 else power
