"""TLS of the ports that clients connect to."""

import ssl
import threading

import grpc

from baton.rpc.file_watcher import FileWatcher
from baton.rpc.server_certificate import (
    CertificateFiles,
    ServerCertificate,
    read_server_certificate,
)


class ClientTls:
    """The certificate of a running server, over HTTP and gRPC.

    A connection keeps the certificate with which it began; each new one gets the newest.
    """

    def __init__(self, files: CertificateFiles) -> None:
        """Raises ConfigError as `read_server_certificate` does."""
        self._watcher = FileWatcher(
            "the certificate for clients",
            (files.certificate, files.key),
            lambda: read_server_certificate(files),
        )

    @property
    def certificate(self) -> ServerCertificate:
        return self._watcher.get()

    def seconds_left(self) -> float:
        """Return the seconds until the present certificate ends."""
        return self.certificate.seconds_left()

    def http_context(self) -> ssl.SSLContext:
        """Return the context of an HTTP server."""
        context = self.certificate.http

        def choose(connection: ssl.SSLObject, name: str | None, begun: ssl.SSLContext) -> None:
            """Called as each handshake begins, also for a client that names no host."""
            connection.context = self.certificate.http

        context.sni_callback = choose
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        lock = threading.Lock()  # handshakes are on gRPC's threads
        given = self.certificate

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """Called as each handshake begins."""
            nonlocal given
            with lock:
                found = self.certificate
                if found is given:
                    return None
                given = found
            return _configuration(found)

        return grpc.dynamic_ssl_server_credentials(_configuration(given), newer)


def _configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificate.key_pem, certificate.chain_pem)])
