"""The authority of a cluster: it signs the certificate of each process."""

import datetime
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from baton.deploy.errors import StartError
from baton.rpc.credentials import AUTHORITIES, CERT, KEY
from baton.rpc.identity import Identity

VALID = datetime.timedelta(days=3650)
"""A cluster's own authority, and with it every certificate, ends with the cluster."""
_SKEW = datetime.timedelta(minutes=5)  # clocks of machines differ

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class AuthorityFiles:
    """The PEM files of an authority that the operator brings."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority and its key. The key stays in this process's memory and in the files
    that the operator has named; pickling copies it, for the record of a detached cluster.
    """

    def __init__(self, cert: x509.Certificate, key: SigningKey) -> None:
        self._cert = cert
        self._key = key

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], "Authority"], tuple[bytes, bytes]]:
        return _from_pem, (self.pem, self.key_pem)

    @classmethod
    def create(cls, cluster: str) -> Self:
        """Make an authority for one cluster: EC P-256, in memory alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        # No two have one name: TLS libraries look for an issuer by its name first.
        named = f"authority of {cluster}, {secrets.token_hex(4)}"
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, named)])
        builder = (
            _builder(name, name, key.public_key(), _now() + VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, files: AuthorityFiles) -> Self:
        """Read an authority. Raises StartError that names the file."""
        cert_file, key_file = files.cert, files.key
        try:
            cert = x509.load_pem_x509_certificate(cert_file.read_bytes())
        except (OSError, ValueError) as err:
            raise StartError(f"cannot read the authority's certificate {cert_file}: {err}") from err
        try:
            key = load_pem_private_key(key_file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as err:
            raise StartError(f"cannot read the authority's key {key_file}: {err}") from err
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise StartError(f"{key_file} is {type(key).__name__}; expected an EC or an RSA key")
        if key.public_key() != cert.public_key():
            raise StartError(f"{key_file} is not the key of the authority {cert_file}")
        _check_signs(cert, cert_file)
        return cls(cert, key)

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return self._cert.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def issue(
        self,
        identity: Identity,
        folder: Path,
        valid: datetime.timedelta = VALID,
        trusted: bytes | None = None,
    ) -> None:
        """Write a new key and certificate for a process to `folder`, readable by this user alone.

        The files replace those of an earlier issue one by one; `Credentials` accepts them once all
        are there.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])
        names = x509.SubjectAlternativeName([x509.DNSName(name) for name in identity.dns_names])
        ends = min(_now() + valid, self._cert.not_valid_after_utc)
        builder = (
            _builder(subject, self._cert.subject, key.public_key(), ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(names, critical=False)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(self._key_identifier(), critical=False)
        )
        cert = builder.sign(self._key, hashes.SHA256())
        folder.mkdir(mode=0o700, exist_ok=True)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(folder / KEY, plain)
        write_private(folder / CERT, cert.public_bytes(Encoding.PEM))
        write_private(folder / AUTHORITIES, self.pem if trusted is None else trusted)

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        try:
            named = self._cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named)


def _from_pem(cert: bytes, key: bytes) -> Authority:
    loaded = load_pem_private_key(key, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    return Authority(x509.load_pem_x509_certificate(cert), loaded)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user may read; a reader sees the old content or the new."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _check_signs(cert: x509.Certificate, path: Path) -> None:
    """Raise StartError for a certificate that cannot sign others, now."""
    try:
        authority = cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        authority = False
    if not authority:
        raise StartError(f"{path} is no authority's certificate (basicConstraints CA:TRUE)")
    if cert.not_valid_after_utc <= _now():
        raise StartError(f"the authority {path} has expired on {cert.not_valid_after_utc:%Y-%m-%d}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
