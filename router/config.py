"""The router's options."""

from dataclasses import dataclass
from pathlib import Path

from baton.router.errors import ConfigError
from baton.router.policies import POLICIES
from baton.text.model_folder import model_name


@dataclass(frozen=True)
class RouterConfig:
    """Set once, at start, from the command line."""

    model: Path  # the folder that tokenizer and chat template are read from
    served_model_name: str | None = None  # None: the folder's name, or the id on the hub
    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    policy: str = "round_robin"
    prefill_fallbacks: int = 2  # prefill workers named to the rank besides the first
    lease_ms: int = 2000  # a worker that is silent for longer is lost
    max_queued: int = 256  # requests beyond the decode slots of all ranks
    max_body_bytes: int = 32 << 20
    worker_wait_s: float = 30.0  # for a worker of a missing role, before a request is turned away
    request_timeout_s: float = 3600.0  # from arrival to finish
    retry_after_s: float = 1.0  # told to clients that are turned away
    incremental_streaming_output: bool = False  # of /generate: what is new, not all so far

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.policy not in POLICIES:
            raise ConfigError(f"policy is {self.policy!r}; expected one of {', '.join(POLICIES)}")
        for name, value in (
            ("lease_ms", self.lease_ms),
            ("max_body_bytes", self.max_body_bytes),
            ("request_timeout_s", self.request_timeout_s),
            ("retry_after_s", self.retry_after_s),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value}; expected more than 0")
        for name, value in (
            ("prefill_fallbacks", self.prefill_fallbacks),
            ("max_queued", self.max_queued),
            ("worker_wait_s", self.worker_wait_s),
        ):
            if not value >= 0:
                raise ConfigError(f"{name} is {value}; expected 0 or more")
        for name, port in (("http_port", self.http_port), ("grpc_port", self.grpc_port)):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{name} is {port}; expected 0 to 65535")

    @property
    def model_id(self) -> str:
        """The name that clients ask for."""
        return self.served_model_name or model_name(self.model)

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000
