"""The record of a start's progress, for those who ask for it later and from elsewhere."""

import threading
from dataclasses import dataclass

from baton.deploy.messages.start_progress import StartProgress
from baton.deploy.process.stop import StopWanted


@dataclass(frozen=True)
class StartReport:
    """One call of a `StartProgress`."""

    part: str
    phase: str
    fraction: float | None  # None: the part is done

    def tell(self, progress: StartProgress) -> None:
        if self.fraction is None:
            progress.done(self.part, self.phase)
        else:
            progress.update(self.part, self.phase, self.fraction)


class StartReports:
    """A `StartProgress` that keeps the reports and passes them on. Thread-safe.

    A start that is to be given up ends at its next report.
    """

    def __init__(self, progress: StartProgress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._reports: list[StartReport] = []
        self._latest: dict[str, StartReport] = {}
        self._given_up = threading.Event()

    def update(self, part: str, phase: str, fraction: float) -> None:
        """Keep a report. Raises StopWanted once the start was given up."""
        if self._given_up.is_set():
            raise StopWanted
        self._keep(StartReport(part, phase, fraction))

    def done(self, part: str, detail: str) -> None:
        self._keep(StartReport(part, detail, None))

    def give_up(self) -> None:
        self._given_up.set()

    def after(self, seen: int) -> list[StartReport]:
        """Return the reports but for the first `seen`."""
        with self._lock:
            return self._reports[seen:]

    @property
    def parts(self) -> dict[str, str]:
        """Return the last phase of each part, with the percentage where it is not done."""
        with self._lock:
            return {part: _in_words(report) for part, report in self._latest.items()}

    @property
    def under_way(self) -> dict[str, str]:
        """Return the last phase of each part that is not done."""
        with self._lock:
            latest = dict(self._latest)
        return {part: each.phase for part, each in latest.items() if each.fraction is not None}

    def _keep(self, report: StartReport) -> None:
        with self._lock:
            last = self._latest.get(report.part)
            self._latest[report.part] = report
            # Of the many reports of a phase, one in a hundredth of the way is enough.
            near = last and last.phase == report.phase and _close(last.fraction, report.fraction)
            if not near:
                self._reports.append(report)
        report.tell(self._progress)


def _close(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) < 0.01


def _in_words(report: StartReport) -> str:
    return report.phase if report.fraction is None else f"{report.phase}, {report.fraction:.0%}"
