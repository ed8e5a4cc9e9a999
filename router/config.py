"""The options of a router."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.api.access.client_limits import MAX_BODY_BYTES, ClientLimits
from baton.api.admission.defaults import (
    KEY_SLOWDOWN,
    MAX_QUEUED,
    MAX_QUEUED_TOKENS,
    PING_S,
    REQUEST_TIMEOUT_S,
    WORKER_WAIT_S,
)
from baton.api.fields.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.core.errors import ConfigError
from baton.core.telemetry_options import TelemetryOptions
from baton.router.dump.request_dump import DumpOptions
from baton.router.policies.registry import POLICIES
from baton.rpc.lease import DEFAULT_LEASE_MS, MIN_LEASE_MS
from baton.rpc.server_certificate import CertificateFiles
from baton.text.generation_config import SamplingDefaults
from baton.text.model_folder import served_names
from baton.text.template_options import TemplateOptions


@dataclass(frozen=True)
class RouterConfig:
    """The options of a router, set at start from the command line."""

    model: Path  # the folder that tokenizer and chat template are read from
    # The folder of its certificate, for workers. A cluster sets it; no router starts without.
    credentials: Path | None = None
    served_model_name: str | None = None  # None: the folder's name, or the id on the hub
    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    internal_host: str = "127.0.0.1"  # where workers register, with certificates
    internal_port: int = 0
    policy: str = "prefix_aware"
    # Tokens of a prompt that its rank may compute itself; 0: none; None: by measured speeds.
    prefill_here: int | None = None
    # Steps in which a rank writes answers and computes a prompt take at most so long; None: any.
    itl_target_ms: float | None = None
    lease_ms: int = DEFAULT_LEASE_MS  # a worker that is silent for longer counts as lost
    max_queued: int = MAX_QUEUED  # requests beyond the capacity of all decode ranks
    max_queued_tokens: int = MAX_QUEUED_TOKENS  # of requests that wait; one alone may have more
    # How much longer one key's requests may make a decode step of the others'; 0: without bound.
    key_slowdown: float = KEY_SLOWDOWN
    max_body_bytes: int = MAX_BODY_BYTES  # of one request, over HTTP or gRPC
    unknown_fields: UnknownFields = UnknownFields.WARN  # in bodies of HTTP requests
    closed_objects: bool = False  # objects of answers have only members that their schema names
    sampling_defaults: SamplingDefaults = SamplingDefaults.MODEL  # what requests leave out
    template: TemplateOptions = field(default_factory=TemplateOptions)
    worker_wait_s: float = WORKER_WAIT_S  # a request waits so long for a missing role, then fails
    request_timeout_s: float = REQUEST_TIMEOUT_S  # from arrival to finish
    incremental_streaming_output: bool = False  # /generate streams send new text only
    ping_s: float = PING_S  # the silence after which a stream sends a ping; 0: never
    allowed_hosts: tuple[str, ...] = ()  # names in `Host` besides loopback's and `host`
    api_keys: Path | None = None  # the file of API keys; None: everybody may call
    control: Path | None = None  # the socket of whoever runs the cluster; None: nobody
    operator_sha256: str = ""  # the digest of a key for `deploy`, which is in no file
    cors_origins: tuple[str, ...] = ()  # origins of pages that may call from a browser
    routers: int = 1  # of the cluster, of each of which API keys' caps are a part
    client_tls: CertificateFiles | None = None  # of the ports for clients; None: in the clear
    limits: ClientLimits = field(default_factory=ClientLimits)  # of the ports for clients
    cache_scope: CacheScope = CacheScope.SHARED  # the requests that share cached prefixes
    dump: DumpOptions | None = None  # where requests are recorded; None: nowhere
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)

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
            ("itl_target_ms", 1 if self.itl_target_ms is None else self.itl_target_ms),
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
    def other_model_names(self) -> tuple[str, ...]:
        """The other names by which clients may ask for it."""
        return served_names(self.served_model_name, self.model)[1]

    @property
    def itl_target_s(self) -> float | None:
        return None if self.itl_target_ms is None else self.itl_target_ms / 1000

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000
