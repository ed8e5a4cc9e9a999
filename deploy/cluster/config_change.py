"""The consequences of another config for a running cluster: restarts, or a new start."""

from dataclasses import dataclass, fields, replace

from baton.core.role import ROUTED_ROLES
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.wiring import Wiring
from baton.rpc.identity import ProcessRole

# The fields that a running cluster can change; `engine` and `router` but for those below.
_CHANGEABLE = {
    "engine", "router", "prefill", "decode", "drain_s", "settings", "verify", "state_return",
    "send_snapshots", "profile_folder",
}  # fmt: skip
# Peers that differ in one of these refuse each other's states, or the cluster has promised it.
_ENGINE_STAYS = (
    "model", "dtype", "ssm_dtype", "device", "kernels", "page_size", "mamba_scheduler_strategy",
    "load_format", "weight_format", "round_vocabulary", "mtp", "memory_bytes", "memory_fraction",
    "held_fraction",
)  # fmt: skip
# Whoever runs the cluster, and those who ask it, know these.
_ROUTER_STAYS = ("host", "http_port", "grpc_port", "internal_host", "internal_port", "client_tls")


@dataclass(frozen=True)
class ConfigChange:
    """The consequences of another config."""

    restarts: frozenset[ProcessRole]  # the roles whose processes have another config
    new_start: bool  # only a new start of the cluster can change it


def change_of(wiring: Wiring, wanted: ClusterConfig) -> ConfigChange:
    """Return what a cluster must do for another config. Other numbers of workers alone: nothing."""
    here = wiring.config
    stays = {each.name for each in fields(here)} - _CHANGEABLE
    new_start = (
        _differ(here, wanted, stays)
        or _differ(here.engine, wanted.engine, _ENGINE_STAYS)
        or _differ(here.router, wanted.router, _ROUTER_STAYS)
        # Routers that move carry copies of the files that they had when they were made.
        or (here.routers_move and (here.router.api_keys != wanted.router.api_keys))
    )
    after = replace(wiring, config=replace(wanted, prefill=here.prefill, decode=here.decode))
    restarts = {
        ProcessRole(role)
        for role in ROUTED_ROLES
        if wiring.worker(Member(role, 0)) != after.worker(Member(role, 0))
    }
    if wiring.router() != after.router():
        restarts.add(ProcessRole.ROUTER)
    return ConfigChange(frozenset(restarts), new_start)


def _differ(one: object, other: object, names: "set[str] | tuple[str, ...]") -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in names)
