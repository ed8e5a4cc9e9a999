"""Notes of a router about workers, beside their reports: who was refused, who came from where."""

from collections import OrderedDict
from collections.abc import Callable

_MOST = 64
SHOWN_S = 30.0
"""A worker asks again every two seconds; one that has not asked for so long is gone."""


class WorkerNotes:
    """The last reason of each worker that was refused, and the hosts of the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: OrderedDict[str, tuple[float, str]] = OrderedDict()  # when, and why
        self._callers: dict[str, str] = {}  # by worker, the host that it registered from

    def refused(self, worker_id: str, reason: str) -> bool:
        """Record why a worker was refused. Return False if it was for the same reason a moment
        ago."""
        news = self.reasons().get(worker_id) != reason
        self._refused.pop(worker_id, None)
        self._refused[worker_id] = (self._clock(), reason)
        if len(self._refused) > _MOST:
            self._refused.popitem(last=False)
        return news

    def joined(self, worker_id: str, host: str) -> None:
        """Record that a worker was taken on. host: the one that it registered from."""
        self._refused.pop(worker_id, None)
        self._callers[worker_id] = host

    def left(self, worker_id: str) -> None:
        self._callers.pop(worker_id, None)

    def caller(self, worker_id: str) -> str | None:
        """Return the host that a worker registered from; None before it is known."""
        return self._callers.get(worker_id)

    def reasons(self) -> dict[str, str]:
        """Return why each was refused that asked a moment ago, in the order of names."""
        since = self._clock() - SHOWN_S
        return {name: why for name, (when, why) in sorted(self._refused.items()) if when >= since}
