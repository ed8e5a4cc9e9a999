"""What a cluster is made of."""

from dataclasses import dataclass

from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig
from baton.worker.config import Role, SendSnapshots, StateReturn


@dataclass(frozen=True)
class ClusterConfig:
    """Set once, from the command line or a test."""

    engine: EngineConfig  # every worker's, but for what differs by role
    prefill: int = 1  # workers that read prompts
    decode: int = 1  # workers that write answers
    policy: str = "round_robin"
    state_return: StateReturn = StateReturn.OFF
    send_snapshots: SendSnapshots = SendSnapshots.OFF
    served_model_name: str | None = None  # None: the folder's name
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

    @property
    def worker_ids(self) -> dict[str, Role]:
        roles = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}
        return {f"{role}-{i}": role for role, count in roles.items() for i in range(count)}
