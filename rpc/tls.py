"""Certificates of the gRPC channel. Both ends show one; the same CA must have signed both."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files. The certificate names the address of its worker."""

    cert: Path
    key: Path
    ca: Path

    def server(self) -> grpc.ServerCredentials:
        """Load a server's credentials. Raises OSError if a file cannot be read."""
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)

    def client(self) -> grpc.ChannelCredentials:
        """Load a client's credentials. Raises OSError if a file cannot be read."""
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )
