"""The option of the lease, which router and workers share."""

from dataclasses import dataclass

from baton.core.options import Group, Number, option
from baton.rpc.lease import DEFAULT_LEASE_MS

_LEAST_S, _MOST_S = 1, 3600  # heartbeats and reports of a shorter one would come too often


# fmt: off
@dataclass(frozen=True, kw_only=True)
class LeaseOptions:
    """The time after which a silent peer counts as lost."""

    lease_ms: int = option(
        DEFAULT_LEASE_MS, Group.INSIDE,
        "Seconds of silence after which router and workers count each other as lost.",
        Number(_LEAST_S, _MOST_S, unit="seconds"), names=("--lease",), factor=1000)
# fmt: on
