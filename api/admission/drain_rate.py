"""The rate at which a queue empties."""

import math
from collections.abc import Callable

from baton.core.fading_mean import FadingMean

MEMORY_S = 10.0
"""The time that counts: what is older by as much weighs a third."""
MAX_WAIT_S = 60.0
"""The longest wait that a client is told. The rate may be another one by then."""


class DrainRate:
    """Tokens that leave a queue a second, measured only while something waits in it.

    When nothing waits, what leaves is what comes, which says nothing about what could.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None  # measured up to here; None: nothing waits
        self._rate = FadingMean()  # tokens a second

    def begin(self) -> None:
        """Note that something waits from now on."""
        self._since = self._clock()

    def end(self) -> None:
        """Note that nothing waits any more."""
        self._advance()
        self._since = None

    def left(self, tokens: int) -> None:
        """Note that a request of so many tokens left the queue because its turn came."""
        if self._since is None:
            return
        self._advance()
        self._rate.add(tokens, 0.0, kept=1.0)

    @property
    def tokens_per_s(self) -> float:
        """Return the rate; 0 before anything has left the queue."""
        self._advance()
        return self._rate.value

    def seconds_for(self, tokens: float, otherwise: float) -> float:
        """Return the time in which so many tokens leave; `otherwise` where the rate is not known.

        At most MAX_WAIT_S.
        """
        rate = self.tokens_per_s
        return min(tokens / rate, MAX_WAIT_S) if rate > 0 else otherwise

    def _advance(self) -> None:
        if self._since is None:
            return
        now = self._clock()
        weight = math.exp((self._since - now) / MEMORY_S)
        self._rate.add(0.0, MEMORY_S * (1 - weight), kept=weight)
        self._since = now
