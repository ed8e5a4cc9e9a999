"""The configuration of a cluster."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.core.address import WILDCARDS, is_loopback
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.deploy.certs.authority import AuthorityFiles
from baton.deploy.cluster.cluster_name import check_name, new_name
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.cluster.member import Member
from baton.deploy.demand.demand import NodePlacement
from baton.deploy.errors import StartError
from baton.deploy.options.access import StopOptions
from baton.deploy.options.cluster import ClusterOptions
from baton.deploy.options.setting import Setting
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.engine_options import check_ranks
from baton.router.config import RouterConfig


@dataclass(frozen=True)
class ClusterConfig(ClusterOptions, StopOptions):
    """The settings of a cluster: the operator's options, and what they are resolved to."""

    engine: EngineConfig  # of every worker; role-specific fields are overridden
    # Its lease is that of the workers too. Its model, its credentials and ports that are 0 are
    # overridden.
    router: RouterConfig = field(default_factory=lambda: RouterConfig(Path()))
    name: str = field(default_factory=new_name)  # by which commands find it
    prefill_tp: int = 1  # tensor-parallel ranks of each prefill worker: a process each
    decode_tp: int = 1  # and of each decode worker
    # The issuer of certificates, files or a folder of `baton certs`; None: the cluster's own.
    authority: AuthorityFiles | Path | None = None
    # Each option of `baton serve` with its source; none where the cluster is made by a program.
    settings: tuple[Setting, ...] = ()
    profile_folder: Path | None = None  # for traces of workers; None: no profile is made
    placement: NodePlacement = field(default_factory=NodePlacement)

    def __post_init__(self) -> None:
        """Check name and counts. Raises StartError."""
        check_name(self.name)
        if self.routers < 1:
            raise StartError(f"--routers is {self.routers}; a cluster needs at least one")
        for option, count in (("--prefill", self.prefill), ("--decode", self.decode)):
            if count < 1:
                raise StartError(f"{option} is {count}; a cluster needs at least one of each role")
        if self.decode_dp < 1:
            raise StartError(f"--decode-dp is {self.decode_dp}; a group needs at least one rank")
        for role in (Role.PREFILL, Role.DECODE):
            self._check_ranks(role)
        if self.engine.device.startswith("cuda:"):
            raise StartError(
                f"--device {self.engine.device}: Ray gives each worker a GPU of its own; expected "
                "cuda"
            )
        self._check_placement()

    def _check_ranks(self, role: Role) -> None:
        """Raise StartError for a number of ranks that workers of this role cannot have."""
        ranks = self.tp_of(role)
        if ranks < 1:
            raise StartError(f"--{role}-tp is {ranks}; a worker has at least one rank")
        engine = self.engine if role is Role.DECODE else self.engine.for_prompts
        try:
            check_ranks(replace(engine, tp=ranks))
        except ConfigError as err:
            raise StartError(f"--{role}-tp: {err}") from err
        gpus = self.placement.gpus_on(engine.device, ranks)
        if engine.device != "cpu" and ranks > 1 and gpus < ranks:
            raise StartError(
                f"--gpus-per-worker {gpus:g}: each of the {ranks} ranks of a {role} worker has a "
                f"GPU of its own; expected {ranks} or more"
            )

    @property
    def routers_move(self) -> bool:
        """Return True if routers may run on any node of a joined Ray.

        An address of one host, for clients or for workers, keeps them on that host.
        """
        router = self.router
        return (
            self.ray_address is not None
            and router.host in WILDCARDS
            and is_loopback(router.internal_host)
        )

    def _check_placement(self) -> None:
        """Raise StartError for what only a Ray with other hosts can give."""
        if self.ray_address is not None:
            return
        placement = self.placement
        for option, given in (
            ("--prefill-label and --prefill-resource", placement.prefill),
            ("--decode-label and --decode-resource", placement.decode),
            ("--wait-for-nodes", placement.await_nodes),
            ("--worker-interface", self.worker_interface),
        ):
            if given:
                raise StartError(f"{option}: only for a Ray that you join with --ray-address")

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the workers that the cluster starts with."""
        counts = {Role.PREFILL: self.prefill, Role.DECODE: self.decode * self.decode_dp}
        return tuple(Member(role, i) for role, count in counts.items() for i in range(count))

    @property
    def gpu_demand(self) -> GpuDemand:
        """Return what the first workers ask of this machine's GPUs; of a joined Ray, nothing."""
        here = self.members if self.ray_address is None else ()
        return GpuDemand(tuple(self.tp_of(each.role) for each in here), self.placement.gpus)

    def tp_of(self, role: Role) -> int:
        """Return the tensor-parallel ranks of each worker of a role."""
        return self.decode_tp if role is Role.DECODE else self.prefill_tp

    def group_of(self, rank: int) -> int:
        """Return a rank's group. Ranks 0 to decode_dp - 1 are group 0, and so on."""
        return rank // self.decode_dp
