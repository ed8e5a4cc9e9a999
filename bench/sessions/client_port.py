"""The port of a benchmark's router for clients, and what opens it."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import PinnedCertificate
from baton.rpc.credentials import CERT, KEY
from baton.rpc.server_certificate import CertificateFiles


@dataclass(frozen=True)
class ClientPort:
    """A router's port for clients: open to everybody in the clear, or with keys and TLS."""

    keys: Path | None = None  # the file of API keys
    api_key: str = field(default="", repr=False)  # one of them
    tls: CertificateFiles | None = None

    @classmethod
    def secured(cls, folder: Path, certificate: Path) -> "ClientPort":
        """Write a file of one key to `folder`. certificate: a folder of `ClusterCredentials`."""
        api_key, keys = new_key(), folder / "keys.json"
        write_keys(keys, [Key("bench", digest_of(api_key), frozenset(KeyScope))])
        return cls(keys, api_key, CertificateFiles(certificate / CERT, certificate / KEY))

    def address(self, at: str) -> RouterAddress:
        """Return what opens it. at: `host:port`."""
        if self.tls is None:
            return RouterAddress(f"http://{at}", self.api_key)
        trust = PinnedCertificate(self.tls.certificate)
        return RouterAddress(f"https://{at}", self.api_key, trust)
