"""The display while a cluster starts: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.deploy.messages.start_progress import StartProgress


class Bars:
    """A progress bar for each part, redrawn in place."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def update(self, part: str, phase: str, fraction: float) -> None:
        self._progress.update(self._bar(part), phase=phase, completed=fraction)

    def done(self, part: str, detail: str) -> None:
        self._progress.update(self._bar(part), phase=detail, completed=1.0)
        self._progress.stop_task(self._bar(part))

    def _bar(self, part: str) -> TaskID:
        if part not in self._bars:
            self._bars[part] = self._progress.add_task(part, total=1.0, phase="")
        return self._bars[part]


class Lines:
    """One line for each change of phase, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._phases: dict[str, str] = {}

    def update(self, part: str, phase: str, fraction: float) -> None:
        if self._phases.get(part) != phase:
            self._phases[part] = phase
            self._print(part, phase)

    def done(self, part: str, detail: str) -> None:
        self._print(part, detail)

    def _print(self, part: str, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(f"{elapsed:6.1f} s  {part:<12} {text}", highlight=False)


@contextmanager
def shown(console: Console) -> Iterator[StartProgress]:
    """Show bars if `console` is a terminal, else lines."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[phase]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
