"""The changes of a cluster that are under way, for those who ask for its state."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from baton.deploy.cluster.start_reports import StartReports
from baton.deploy.messages.start_progress import StartProgress


class RunningChanges:
    """The requests that are being handled, each with its progress. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[tuple[str, StartReports]] = []

    @contextmanager
    def kept(self, request: str, progress: StartProgress) -> Iterator[StartProgress]:
        """Keep the progress of one request inside the context, and pass it on to `progress`."""
        reports = StartReports(progress)
        entry = (request, reports)
        with self._lock:
            self._running.append(entry)
        try:
            yield reports
        finally:
            with self._lock:
                self._running.remove(entry)

    def describe(self) -> list[dict[str, object]]:
        """Return the name of each request, and the last phase of each of its parts."""
        with self._lock:
            running = list(self._running)
        return [{"request": name, "parts": reports.parts} for name, reports in running]

    def under_way(self) -> dict[str, str]:
        """Return what is being done with each part that is not done yet."""
        with self._lock:
            running = list(self._running)
        return {part: at for _, reports in running for part, at in reports.under_way.items()}
