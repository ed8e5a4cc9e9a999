"""The settings of the servers for the own clients of a worker without Ray."""

from dataclasses import dataclass

from baton.api.access.browser_guard import BrowserPolicy
from baton.api.server.server_options import ClientServerOptions
from baton.rpc.server_certificate import CertificateFiles


@dataclass(frozen=True)
class StandaloneConfig(ClientServerOptions):
    """The settings for a worker's own clients, set from the command line."""

    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free one
    grpc_port: int = 0
    client_tls: CertificateFiles | None = None  # None: in the clear
    drain_s: float = 0.0  # seconds for running requests at the stop

    @property
    def browsers(self) -> BrowserPolicy:
        return BrowserPolicy.of_server(
            self.host, self.allowed_hosts, self.cors_origins, keys=self.api_keys is not None
        )
