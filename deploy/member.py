"""A worker's place in the cluster."""

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
