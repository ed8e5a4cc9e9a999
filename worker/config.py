"""The configuration of one worker."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.core.address import WILDCARDS
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.core.telemetry_options import TelemetryOptions
from baton.engine.settings.config import EngineConfig
from baton.rpc.identity import number_in
from baton.rpc.lease import MIN_LEASE_MS
from baton.rpc.lease_options import LeaseOptions
from baton.transfer.channels import registry
from baton.transfer.channels.names import AUTO
from baton.transfer.channels.options import TransferOptions
from baton.transfer.channels.trusted_network import TrustedNetwork
from baton.worker.state_options import SendSnapshots, StateReturn

CHANNELS = (AUTO, *registry.NAMES)


@dataclass(frozen=True)
class WorkerConfig(TransferOptions, LeaseOptions):
    """The settings of one worker. Raises ConfigError for an option that cannot work."""

    worker_id: str  # kept through restarts; a decode rank's ends with its number
    role: Role
    engine: EngineConfig
    host: str = "127.0.0.1"  # what it listens on for its peers
    advertise_host: str | None = None  # where its peers find it; None: at `host`
    dp_group: int = 0  # a decode rank's data-parallel group
    grpc_port: int = 0  # where its peers find it; 0: any free one
    routers: tuple[str, ...] = ()  # host:port at which each router takes registrations
    credentials: Path | None = None  # the folder of its certificate; None: role `both` alone
    state_return: StateReturn = StateReturn.OFF
    send_snapshots: SendSnapshots = SendSnapshots.OFF
    profile_folder: Path | None = None  # for traces of profiles; None: no profile is made
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    incarnation: int | None = None  # of this start, above all earlier ones; None: by the clock

    def __post_init__(self) -> None:
        if not self.worker_id:
            raise ConfigError("worker_id is empty; give each worker a name of its own")
        if (self.credentials is None) != (self.role is Role.BOTH):
            raise ConfigError(
                f"a {self.role} worker proves to its peers who it is: credentials names the folder "
                "of its certificate"
                if self.credentials is None
                else "a worker that stands alone has no peers to show a certificate to"
            )
        if self.role is Role.DECODE and number_in(self.worker_id) is None:
            raise ConfigError(
                f"worker_id is {self.worker_id!r}; expected a decode worker's to end with its "
                "number in the cluster, as decode-3"
            )
        if self.peer_host in WILDCARDS:
            raise ConfigError(
                f"peers cannot connect to {self.peer_host}, which stands for every address; "
                "name the one at which they reach this worker (--advertise-host)"
            )
        if self.channel not in CHANNELS:
            raise ConfigError(f"channel is {self.channel!r}; expected one of {CHANNELS}")
        if self.lease_ms < MIN_LEASE_MS:
            raise ConfigError(f"lease_ms is {self.lease_ms}; expected at least {MIN_LEASE_MS}")
        if self.role is Role.DECODE and self.engine.tickets < 1:
            raise ConfigError(
                "a decode worker needs at least one ticket, to take in hand-offs: engine.tickets "
                f"is {self.engine.tickets}"
            )
        returns = self.role is Role.PREFILL and self.state_return is not StateReturn.OFF
        if returns and self.engine.tickets < 1:
            raise ConfigError(
                "a prefill worker that state returns to needs at least one ticket, to take it in: "
                f"engine.tickets is {self.engine.tickets}"
            )

    @property
    def peer_host(self) -> str:
        """The host at which peers reach this worker."""
        return self.advertise_host or self.host

    @property
    def dp_rank(self) -> int:
        """The number among the cluster's decode ranks, which routed_dp_rank names; 0 for others."""
        number = number_in(self.worker_id) if self.role is Role.DECODE else None
        return number or 0

    def verifies(self, channel: str) -> bool:
        """Return True if segments sent by this channel carry checksums.

        By default all do, except those that never pass through the host's memory.
        """
        if self.verify is not None:
            return self.verify
        through_host = registry.find(channel).capabilities.through_host
        return through_host or self.engine.device == "cpu"

    @property
    def trusted_network(self) -> TrustedNetwork:
        return TrustedNetwork(self.peer_host, self.nixl_interfaces)

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000
