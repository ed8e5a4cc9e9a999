"""Certificates of the gRPC channel: both ends show one, and both must be signed by the same CA."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """PEM files. The certificate names the address that its worker is found at."""

    cert: Path
    key: Path
    ca: Path

    def server(self) -> grpc.ServerCredentials:
        """Raises OSError where a file cannot be read."""
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)

    def client(self) -> grpc.ChannelCredentials:
        """Raises OSError where a file cannot be read."""
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )
