"""The request that `baton scale` sends to the serving process.

This module imports nothing of a cluster, so that the command starts at once.
"""

import re
from collections.abc import Mapping
from typing import Any


def parse_counts(words: tuple[str, ...]) -> dict[str, int]:
    """Parse words such as `decode=4` into counts by role. Raises ValueError with the reason."""
    counts: dict[str, int] = {}
    for word in words:
        found = re.fullmatch(r"(prefill|decode)=(\d+)", word)
        if found is None:
            raise ValueError(f"{word!r} is not prefill=COUNT or decode=COUNT")
        if found[1] in counts:
            raise ValueError(f"{found[1]} is given twice")
        counts[found[1]] = int(found[2])
    if not counts:
        raise ValueError("name a role and how many of it there should be, as in decode=4")
    return counts


def scale_request(counts: Mapping[str, int], drain_s: float) -> dict[str, Any]:
    return {"scale": dict(counts), "drain_s": drain_s}
