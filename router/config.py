"""The settings of a router."""

from dataclasses import dataclass
from pathlib import Path

from baton.api.server.server_options import ClientServerConfig
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError
from baton.router.options import RouterOptions
from baton.router.policies.registry import POLICIES
from baton.rpc.lease import MIN_LEASE_MS
from baton.text.model_folder import served_names


@dataclass(frozen=True)
class RouterConfig(RouterOptions, ClientServerConfig):
    """The settings of a router: the operator's options, and what its command or cluster decides."""

    model: Path  # the folder that tokenizer and chat template are read from
    # The folder of its certificate, for workers. A cluster sets it; no router starts without.
    credentials: Path | None = None
    # The descriptor, in the router's process, of a socket that is bound there; None: there is none.
    http_socket: int | None = None
    control: Path | None = None  # the socket of whoever runs the cluster; None: nobody
    operator_sha256: str = ""  # the digest of a key for `deploy`, which is in no file
    routers: int = 1  # of the cluster, of each of which API keys' caps are a part

    def __post_init__(self) -> None:
        """Check the values. Raises ConfigError."""
        if self.policy not in POLICIES:
            raise ConfigError(f"policy is {self.policy!r}; expected one of {', '.join(POLICIES)}")
        if self.cache_scope is CacheScope.KEY and self.api_keys is None:
            raise ConfigError("cache_scope is key, but without api_keys no request has a key")
        if self.lease_ms < MIN_LEASE_MS:
            raise ConfigError(f"lease_ms is {self.lease_ms}; expected at least {MIN_LEASE_MS}")
        for name, value in (
            ("max_body_bytes", self.max_body_bytes),
            ("routers", self.routers),
            ("itl_target_s", 1 if self.itl_target_s is None else self.itl_target_s),
            ("request_timeout_s", self.request_timeout_s),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value}; expected more than 0")
        for name, value in (
            ("prefill_here", self.prefill_here or 0),
            ("max_queued", self.max_queued),
            ("max_queued_tokens", self.max_queued_tokens),
            ("worker_wait_s", self.worker_wait_s),
        ):
            if not value >= 0:
                raise ConfigError(f"{name} is {value}; expected 0 or more")
        if self.key_slowdown and not self.key_slowdown > 1:
            raise ConfigError(f"key_slowdown is {self.key_slowdown}; expected more than 1, or 0")
        for name, port in (
            ("http_port", self.http_port),
            ("grpc_port", self.grpc_port),
            ("internal_port", self.internal_port),
        ):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{name} is {port}; expected 0 to 65535")

    @property
    def model_id(self) -> str:
        """The model name that clients ask for."""
        return served_names(self.served_model_name, self.model)[0]

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000
