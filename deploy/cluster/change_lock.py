"""The lock of whatever changes a running cluster: one change at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from baton.deploy.errors import ScaleError


class ChangeLock:
    """A lock that never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what = ""

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Hold the lock. what: the change, for whoever comes meanwhile. Raises ScaleError."""
        if not self._lock.acquire(blocking=False):
            raise ScaleError(f"the cluster is busy with {self._what}; wait until that is done")
        self._what = what
        try:
            yield
        finally:
            self._lock.release()
