"""The record of a detached cluster in Ray's control store, for its supervisor's next life.

The record holds the key of the cluster's authority and the operator's key. Whoever can read Ray's
control store can run any code as this user anyway.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ray.experimental import internal_kv

from baton.deploy.cluster.member import Member
from baton.deploy.cluster.wiring import Wiring

_KEY = b"record"


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
        self._space = f"baton:{name}".encode()

    def read(self) -> ClusterRecord | None:
        """Return the record, or None before the first was written."""
        found = internal_kv._internal_kv_get(_KEY, namespace=self._space)
        if found is None:
            return None
        record: ClusterRecord = pickle.loads(found)
        return record

    def write(self, record: ClusterRecord) -> None:
        internal_kv._internal_kv_put(
            _KEY, pickle.dumps(record), overwrite=True, namespace=self._space
        )

    def delete(self) -> None:
        internal_kv._internal_kv_del(_KEY, namespace=self._space)


@dataclass(frozen=True)
class Detached:
    """The places outside its process in which a cluster keeps what it outlives that process by."""

    store: RecordStore
    folder: Path  # of its certificates; only this user can enter it
