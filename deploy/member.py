"""A worker's place in the cluster."""

import re
from dataclasses import dataclass

from baton.worker.config import Role


@dataclass(frozen=True)
class Member:
    """Kept through restarts, and free for another worker once this one has left."""

    role: Role  # prefill or decode
    number: int  # of a decode rank: what `routed_dp_rank` names

    @property
    def worker_id(self) -> str:
        return f"{self.role.value}-{self.number}"


def parse_counts(words: tuple[str, ...]) -> dict[Role, int]:
    """`decode=4`, `prefill=2`: how many of each. Raises ValueError that says what is wrong."""
    counts: dict[Role, int] = {}
    for word in words:
        found = re.fullmatch(r"(prefill|decode)=(\d+)", word)
        if found is None:
            raise ValueError(f"{word!r} is not prefill=COUNT or decode=COUNT")
        role = Role(found[1])
        if role in counts:
            raise ValueError(f"{role.value} is given twice")
        counts[role] = int(found[2])
    if not counts:
        raise ValueError("name a role and how many of it there should be, as in decode=4")
    return counts
