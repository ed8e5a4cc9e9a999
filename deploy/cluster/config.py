"""The configuration of a cluster."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.api.client_limits import MAX_BODY_BYTES, ClientLimits
from baton.api.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.core.role import Role
from baton.deploy.certs.authority import AuthorityFiles
from baton.deploy.cluster.member import Member
from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig
from baton.router.defaults import MAX_QUEUED, MAX_QUEUED_TOKENS, REQUEST_TIMEOUT_S, WORKER_WAIT_S
from baton.router.dump.request_dump import DumpOptions
from baton.rpc.lease import DEFAULT_LEASE_MS
from baton.rpc.server_certificate import CertificateFiles
from baton.transfer.channels.names import AUTO
from baton.worker.state_options import SendSnapshots, StateReturn


@dataclass(frozen=True)
class ClusterConfig:
    """Settings of a cluster. Set once, from the command line or a test."""

    engine: EngineConfig  # of every worker; role-specific fields are overridden
    prefill: int = 1  # prefill workers
    decode: int = 1  # groups of decode workers
    decode_dp: int = 1  # ranks of each group: a worker each, with an engine of its own
    threads: int | None = None  # compute threads of each worker; None: an even share of cores
    policy: str = "round_robin"
    channel: str = AUTO  # channel for state between workers
    nixl_interfaces: tuple[str, ...] = ()  # that the operator trusts; none: loopback alone
    # The issuer of certificates, files or a folder of `baton certs`; None: the cluster's own.
    authority: AuthorityFiles | Path | None = None
    verify: bool | None = None  # checksums of state; None: on, but off between GPUs
    state_return: StateReturn = StateReturn.OFF
    send_snapshots: SendSnapshots = SendSnapshots.OFF
    served_model_name: str | None = None  # None: the folder's name, or the id on the hub
    incremental_streaming_output: bool = False  # of /generate: only new text
    unknown_fields: UnknownFields = UnknownFields.REFUSE  # in bodies of HTTP requests
    lease_ms: int = DEFAULT_LEASE_MS  # of router and workers: longer silence means lost
    request_timeout_s: float = REQUEST_TIMEOUT_S  # from arrival to finish
    worker_wait_s: float = WORKER_WAIT_S  # a request waits so long for a missing role
    max_queued: int = MAX_QUEUED  # requests beyond those that the ranks run at once
    max_queued_tokens: int = MAX_QUEUED_TOKENS  # of requests that wait
    max_body_bytes: int = MAX_BODY_BYTES  # of one request
    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()  # names in `Host` besides loopback's and `host`
    api_keys: Path | None = None  # the file of API keys; None: everybody may call
    client_tls: CertificateFiles | None = None  # of the ports for clients; None: in the clear
    cors_origins: tuple[str, ...] = ()  # origins of pages that may call from a browser
    limits: ClientLimits = field(default_factory=ClientLimits)  # of the ports for clients
    cache_scope: CacheScope = CacheScope.SHARED  # the requests that share cached prefixes
    dump: DumpOptions | None = None  # where the router records requests; None: nowhere
    profile_folder: Path | None = None  # for traces of workers; None: no profile is made
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    internal_port: int = 0  # on loopback, where workers register
    ray_address: str | None = None  # None: a Ray of our own
    start_deadline_s: float = 600.0
    drain_s: float = 5.0  # seconds for running requests at the stop

    def __post_init__(self) -> None:
        """Check the counts. Raises StartError."""
        for option, count in (("--prefill", self.prefill), ("--decode", self.decode)):
            if count < 1:
                raise StartError(f"{option} is {count}; a cluster needs at least one of each role")
        if self.decode_dp < 1:
            raise StartError(f"--decode-dp is {self.decode_dp}; a group needs at least one rank")

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the workers that the cluster starts with."""
        counts = {Role.PREFILL: self.prefill, Role.DECODE: self.decode * self.decode_dp}
        return tuple(Member(role, i) for role, count in counts.items() for i in range(count))

    def group_of(self, rank: int) -> int:
        """Return a rank's group. Ranks 0 to decode_dp - 1 are group 0, and so on."""
        return rank // self.decode_dp
