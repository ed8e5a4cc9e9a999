"""A credit that fills up steadily to what one minute may use."""

from collections.abc import Callable


class MinuteRate:
    """A limit of `per_minute` units a minute, in bursts of up to one minute's.

    `parts` servers share the limit: each fills up by its part of it.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float], parts: int = 1) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._parts = parts
        self._credit = float(per_minute)
        self._at = clock()

    @property
    def per_minute(self) -> int:
        return self._per_minute

    def change(self, per_minute: int) -> None:
        """Follow a new limit. What was used stays used."""
        self._fill()
        self._credit += per_minute - self._per_minute
        self._per_minute = per_minute

    @property
    def left(self) -> int:
        """Return the units that may be used at once."""
        self._fill()
        return max(0, int(self._credit))

    def wait_s(self, units: float) -> float:
        """Return the seconds until so many units may be used; 0 if they may be used now."""
        self._fill()
        return max(0.0, (units - self._credit) * 60 * self._parts / self._per_minute)

    @property
    def full_s(self) -> float:
        """Return the seconds until nothing is used any more."""
        return self.wait_s(self._per_minute)

    def use(self, units: float) -> None:
        """Use units, or give them back (below 0). The credit may fall below 0: later uses wait."""
        self._fill()
        self._credit = min(self._credit - units, float(self._per_minute))

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._at) * self._per_minute / (60 * self._parts)
        self._credit = min(self._credit + gained, float(self._per_minute))
        self._at = now
