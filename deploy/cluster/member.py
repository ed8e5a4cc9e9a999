"""A worker's place in the cluster."""

from dataclasses import dataclass

from baton.core.role import Role


@dataclass(frozen=True)
class Member:
    """The identity of a worker in its cluster.

    It survives restarts, and may be given to a new worker once the worker has left.
    """

    role: Role  # prefill or decode
    number: int  # a decode rank's number is its `routed_dp_rank`

    @property
    def worker_id(self) -> str:
        return f"{self.role.value}-{self.number}"
