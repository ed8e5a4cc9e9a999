"""Processes that Ray has started on a full disk, and that never serve."""

from collections.abc import Collection

FIRST_PAUSE_S = 5.0
LAST_PAUSE_S = 300.0


class SpoiltStarts:
    """The members that did not come back while the disk of Ray's logs was full.

    Ray counts such a process as alive, but the call that should make our actor there is lost when
    its first words cannot be written. Room on the disk alone does not bring it back.
    """

    def __init__(self) -> None:
        self._spoilt: set[str] = set()
        self._pauses: dict[str, float] = {}  # before the next start, of members started again
        self._not_before: dict[str, float] = {}

    def look(
        self, away: Collection[str], running: Collection[str], now: float, *, full: bool
    ) -> list[str]:
        """Return the members whose process is to be ended, for Ray to start another: once each
        time that the disk has room again.

        away: the members that have served, and do not since they were started again.
        running: those of them whose process runs. now: seconds on any clock.
        """
        self._pauses = {name: pause for name, pause in self._pauses.items() if name in away}
        self._spoilt.intersection_update(away)
        if full:
            self._spoilt.update(away)
            return []
        due = {
            name
            for name in self._spoilt.intersection(running)
            if name not in self._pauses or now >= self._not_before[name]
        }
        for name in due:
            pause = self._pauses.get(name, FIRST_PAUSE_S)
            self._not_before[name] = now + pause
            self._pauses[name] = min(2 * pause, LAST_PAUSE_S)
        self._spoilt -= due
        return sorted(due)
