"""What `baton scale` asks of the process that serves. It imports nothing of a cluster: the command
is there at once."""

import re
from collections.abc import Mapping
from typing import Any


def parse_counts(words: tuple[str, ...]) -> dict[str, int]:
    """`decode=4`, `prefill=2`: how many of each role. Raises ValueError that says what is wrong."""
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
