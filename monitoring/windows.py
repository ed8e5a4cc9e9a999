"""The lengths of time in the rules, and how they are shortened for a test."""

import re
from dataclasses import dataclass

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Windows:
    """A scale of time. `Windows(60)("5m")` is "5000ms": rules that react 60 times as fast."""

    speed: float = 1.0  # 1: as in production

    def __call__(self, length: str) -> str:
        """Return a length such as `30s` or `6h`, divided by the speed, in Prometheus' form.

        Raises ValueError for another form.
        """
        found = re.fullmatch(r"(\d+)([smhd])", length)
        if found is None:
            raise ValueError(f"{length!r} is not a number and one of s, m, h, d")
        if self.speed == 1.0:
            return length
        return f"{max(1, round(1000 * int(found[1]) * _SECONDS[found[2]] / self.speed))}ms"
