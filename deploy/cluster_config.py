"""What a cluster is made of."""

from dataclasses import dataclass

from baton.deploy.errors import StartError
from baton.deploy.member import Member
from baton.engine.config import EngineConfig
from baton.transfer.tls import Tls
from baton.worker.config import AUTO, Role, SendSnapshots, StateReturn


@dataclass(frozen=True)
class ClusterConfig:
    """Set once, from the command line or a test."""

    engine: EngineConfig  # every worker's, but for what differs by role
    prefill: int = 1  # workers that read prompts
    decode: int = 1  # groups of workers that write answers
    decode_dp: int = 1  # ranks of each group: a worker each, with an engine of its own
    threads: int | None = None  # compute threads of each worker; None: the cores, shared evenly
    policy: str = "round_robin"
    channel: str = AUTO  # how state travels
    tls: Tls | None = None  # of the gRPC channel
    verify: bool | None = None  # checksums of what travels; None: where they cost little
    state_return: StateReturn = StateReturn.OFF
    send_snapshots: SendSnapshots = SendSnapshots.OFF
    served_model_name: str | None = None  # None: the folder's name, or the id on the hub
    incremental_streaming_output: bool = False  # of /generate: what is new, not all so far
    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    ray_address: str | None = None  # None: a Ray of our own
    start_deadline_s: float = 600.0
    drain_s: float = 5.0  # requests under way may finish, at the stop

    def __post_init__(self) -> None:
        """Raises StartError."""
        for option, count in (("--prefill", self.prefill), ("--decode", self.decode)):
            if count < 1:
                raise StartError(f"{option} is {count}; a cluster needs at least one of each role")
        if self.decode_dp < 1:
            raise StartError(f"--decode-dp is {self.decode_dp}; a group needs at least one rank")

    @property
    def members(self) -> tuple[Member, ...]:
        """Those that it starts with."""
        counts = {Role.PREFILL: self.prefill, Role.DECODE: self.decode * self.decode_dp}
        return tuple(Member(role, i) for role, count in counts.items() for i in range(count))

    def group_of(self, rank: int) -> int:
        """Ranks are numbered through all groups: 0 .. decode_dp - 1 are group 0."""
        return rank // self.decode_dp
