"""The lines that calls leave in the log, while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Lines(logging.Handler):
    """The lines of calls, as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def all(self) -> list[dict[str, Any]]:
        """Return the fields of each line."""
        return [vars(record) for record in self.records]

    def only(self) -> dict[str, Any]:
        """Return the fields of the one line that there is."""
        (line,) = self.all()
        return line


@contextmanager
def kept_lines() -> Iterator[Lines]:
    """Keep the lines of calls that are written meanwhile."""
    log, kept = logging.getLogger("baton.access"), Lines()
    level = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    try:
        yield kept
    finally:
        log.removeHandler(kept)
        log.setLevel(level)
