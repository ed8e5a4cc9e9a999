"""The record of a detached cluster in Ray's control store, for its supervisor's next life.

The record holds the key of the cluster's authority and the operator's key. Whoever can read Ray's
control store can run any code as this user anyway.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.deploy.cluster.member import Member
from baton.deploy.cluster.ray_private import ControlStoreSpace
from baton.deploy.cluster.wiring import Wiring

_KEY = "record"


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster's settled addresses and keys, and who belongs to it."""

    wiring: Wiring
    members: tuple[Member, ...]
    budgets: Mapping[str, int]  # bytes of memory promised to each worker, by worker_id
    serves: bool  # False until all first members were ready


class RecordStore:
    """The record of one cluster. Ray is connected."""

    def __init__(self, name: str) -> None:
        """name: the cluster's."""
        self._space = ControlStoreSpace(f"baton:{name}")

    def read(self) -> ClusterRecord | None:
        """Return the record, or None before the first was written."""
        found = self._space.get(_KEY)
        if found is None:
            return None
        record: ClusterRecord = pickle.loads(found)
        return record

    def write(self, record: ClusterRecord) -> None:
        self._space.put(_KEY, pickle.dumps(record))

    def delete(self) -> None:
        self._space.delete(_KEY)


@dataclass(frozen=True)
class Detached:
    """The places outside its process in which a cluster keeps what it outlives that process by."""

    store: RecordStore
    folder: Path  # of its certificates; only this user can enter it
