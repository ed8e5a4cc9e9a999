"""The interface by which a starting cluster reports its progress."""

from typing import Protocol


class StartProgress(Protocol):
    """Receiver of reports on every part that starts: Ray, the router, each worker."""

    def update(self, part: str, phase: str, fraction: float) -> None:
        """Report that `part` is in `phase`, `fraction` (0 to 1) of the whole way to ready."""
        ...

    def done(self, part: str, detail: str) -> None:
        """Report that `part` is ready."""
        ...


class Silent:
    """A `StartProgress` that ignores every report, for tests and benchmarks."""

    def update(self, part: str, phase: str, fraction: float) -> None:
        pass

    def done(self, part: str, detail: str) -> None:
        pass
