"""A value that is read from files, and read again when one of them changes."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from baton.core.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")
RECHECK_S = 1.0
"""The least time between two looks at the files."""


class FileWatcher(Generic[T]):
    """The newest valid value of some files. Whoever needs it asks, from any thread: no task
    polls."""

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """what: names the value in the log. read: raises ConfigError for files that are not valid,
        and so does this.
        """
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._seen = self._look()
        self._value = read()

    def get(self) -> T:
        """Return the value; after a change of the files, their new one if it is valid.

        Files that are not valid are logged once, and the value of before stays.
        """
        with self._lock:
            now = self._clock()
            if now - self._looked >= RECHECK_S:
                self._looked = now
                self._follow()
            return self._value

    def _follow(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._value = self._read()
        except ConfigError as err:
            log.error("%s of before stays in use: %s", self._what, err)
        else:
            log.info("read %s again from %s", self._what, ", ".join(map(str, self._paths)))

    def _look(self) -> list[tuple[int, ...] | None]:
        """Return what differs after every write of a file; None for one that is gone."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
