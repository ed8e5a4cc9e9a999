"""Authorities and certificates for tests, made in milliseconds."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from baton.rpc.server_certificate import CertificateFiles

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class TestAuthority:
    """An authority that signs what a test wants."""

    __test__ = False
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str = "authority") -> "TestAuthority":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _begin(subject, key, subject, dt.datetime.now(dt.UTC) + 30 * DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        return cls(made.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def issue(
        self,
        folder: Path,
        *hosts: str,
        begins: dt.timedelta = -DAY,
        ends: dt.timedelta = DAY,
        uses: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    ) -> CertificateFiles:
        """Write a server's certificate and key into `folder`, in place of those there.

        hosts: names and addresses; 127.0.0.1 without any. begins, ends: from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        now = dt.datetime.now(dt.UTC)
        made = (
            _begin(subject, key, self.certificate.subject, now + ends, now + begins)
            .add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts or ("127.0.0.1",)]),
                critical=False,
            )
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        folder.mkdir(exist_ok=True)
        files = CertificateFiles(folder / "server.pem", folder / "server.key")
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files.key.unlink(missing_ok=True)
        files.key.touch(mode=0o600)
        files.key.write_bytes(key_pem(key))
        return files


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    """Return a key in PEM, encrypted if there is a password."""
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def _begin(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    ends: dt.datetime,
    begins: dt.datetime | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or dt.datetime.now(dt.UTC) - DAY)
        .not_valid_after(ends)
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
