"""The settings of the servers for the own clients of a worker without Ray."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.api.access.browser_guard import BrowserPolicy
from baton.api.access.client_limits import ClientLimits
from baton.api.admission.defaults import PING_S
from baton.api.fields.request_fields import UnknownFields
from baton.core.cache_salt import CacheScope
from baton.rpc.server_certificate import CertificateFiles
from baton.text.generation_config import SamplingDefaults
from baton.text.template_options import TemplateOptions


@dataclass(frozen=True)
class StandaloneConfig:
    """The settings for a worker's own clients, set from the command line."""

    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    served_model_name: str | None = None  # None: the folder's name
    incremental_streaming_output: bool = False  # of /generate: only new text
    ping_s: float = PING_S  # the silence after which a stream sends a ping; 0: never
    unknown_fields: UnknownFields = UnknownFields.WARN  # in bodies of HTTP requests
    closed_objects: bool = False  # objects of answers have only members that their schema names
    sampling_defaults: SamplingDefaults = SamplingDefaults.MODEL  # what requests leave out
    template: TemplateOptions = field(default_factory=TemplateOptions)
    api_keys: Path | None = None  # the file of API keys; None: everybody may call
    cache_scope: CacheScope = CacheScope.SHARED  # the requests that share cached prefixes
    client_tls: CertificateFiles | None = None  # None: in the clear
    allowed_hosts: tuple[str, ...] = ()  # names in `Host` besides loopback's and `host`
    cors_origins: tuple[str, ...] = ()  # origins of pages that may call from a browser
    limits: ClientLimits = field(default_factory=ClientLimits)
    drain_s: float = 0.0  # seconds for running requests at the stop

    @property
    def browsers(self) -> BrowserPolicy:
        return BrowserPolicy.of_server(
            self.host, self.allowed_hosts, self.cors_origins, keys=self.api_keys is not None
        )
