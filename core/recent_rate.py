"""A rate of late, in bytes a second."""


class RecentRate:
    """The rate of the newest measurements: each weighs `kept` of what it did before the next."""

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._bytes = 0.0
        self._seconds = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Return bytes a second; 0: not known."""
        return self._bytes / self._seconds if self._seconds else 0.0

    def took(self, size: int, seconds: float) -> None:
        """Note that `size` bytes took `seconds`."""
        self._bytes = self._kept * self._bytes + size
        self._seconds = self._kept * self._seconds + seconds
