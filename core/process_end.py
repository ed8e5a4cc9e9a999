"""The end of a process that has lost a work which it cannot do without."""

import logging
import os
import time
from collections.abc import Callable

from baton.core.supervised import ProcessSupervisor, child_thread

log = logging.getLogger(__name__)

GRACE_S = 0.25
"""The time that errors have to reach peers and clients."""
RECORD_S = 2.0
"""The time that the record of the reason may take."""


def ending_owner(record: Callable[[str], None] = lambda reason: None) -> ProcessSupervisor:
    """Return the owner of a process that ends with the works which it cannot do without.

    record: as for `end_process`.
    """
    return ProcessSupervisor(lambda reason: end_process(reason, record))


def end_process(reason: str, record: Callable[[str], None]) -> None:
    """End this process soon, whatever its event loop does, for whoever started it to start it
    again. Returns at once.

    record: keeps the reason where it survives the process; it may block.
    """
    recording = child_thread(lambda: record(reason), "record of the end", _not_recorded)

    def end() -> None:
        time.sleep(GRACE_S)
        recording.join(RECORD_S)
        os._exit(1)

    child_thread(end, "end of the process", lambda _: os._exit(1))


def _not_recorded(error: Exception) -> None:
    log.error("why this process ends could not be recorded: %s", error)
