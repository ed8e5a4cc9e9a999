"""The choice between fetching a prefix from elsewhere and computing it here."""

from baton.core.fading_mean import FadingMean

_KEPT = 0.8
"""The part of what was measured that counts on at the next fetch."""
_FIRST = 1
"""Fetches that are not measured: the first one connects."""
_AGAIN = 16
"""Prefixes that are computed because that is sooner, before one is fetched to measure anew."""


class FetchCost:
    """The measured rate of one kind of fetches: from other workers, or from another memory."""

    def __init__(self) -> None:
        self._rate = FadingMean()
        self._seen = 0
        self._computed = 0

    @property
    def bytes_per_s(self) -> float:
        """Return the rate of late; 0: not known."""
        return self._rate.value

    def took(self, size: int, seconds: float) -> None:
        """Note a fetch of `size` bytes."""
        self._seen += 1
        if self._seen > _FIRST:
            self._rate.add(size, seconds, _KEPT)

    def sooner(self, size: int, computing_s: float) -> bool:
        """Return True if fetching `size` bytes is sooner than computing for `computing_s`, or if
        either is not known (0 s).
        """
        rate = self.bytes_per_s
        if not rate or not computing_s or size < computing_s * rate:
            return True
        self._computed = (self._computed + 1) % _AGAIN
        return not self._computed
