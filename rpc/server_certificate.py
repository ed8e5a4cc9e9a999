"""The certificate that a server shows to clients, and its key: two files in PEM."""

import os
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from baton.core.errors import ConfigError


@dataclass(frozen=True)
class CertificateFiles:
    """The paths of a server's certificate and key."""

    certificate: Path  # the server's own first, then those between it and the authority
    key: Path


@dataclass(frozen=True)
class ServerCertificate:
    """A server's certificate that has been read and checked."""

    chain_pem: bytes
    key_pem: bytes = field(repr=False)
    ends: datetime
    names: tuple[str, ...]  # hosts that it is for: DNS names, then addresses
    self_signed: bool
    http: ssl.SSLContext  # for an HTTP/1.1 server

    def seconds_left(self, now: Callable[[], float] = time.time) -> float:
        """Return the seconds until the certificate ends. now: returns a Unix time."""
        return self.ends.timestamp() - now()


def read_server_certificate(files: CertificateFiles) -> ServerCertificate:
    """Read and check a certificate and its key.

    Raises ConfigError, which says what is wrong and what would be right: a file that cannot be
    read, a key that every user can read or that belongs to another certificate, a certificate
    outside of its dates or not for servers.
    """
    chain_pem = _read(files.certificate, "certificate")
    key_pem = _read(files.key, "key")
    _check_mode(files.key)
    leaf = _first(files.certificate, chain_pem)
    key = _key(files.key, key_pem)
    _check_dates(files.certificate, leaf)
    _check_use(files.certificate, leaf)
    if _public(key) != leaf.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    ):
        raise ConfigError(
            f"the key {files.key} does not belong to the certificate {files.certificate}; give the "
            "two files that were made together"
        )
    try:
        context = _http_context(chain_pem, key_pem)
    except ssl.SSLError as err:
        raise ConfigError(f"the certificate {files.certificate} cannot be used: {err}") from err
    return ServerCertificate(
        chain_pem,
        key_pem,
        leaf.not_valid_after_utc,
        _names(leaf),
        leaf.issuer == leaf.subject,
        context,
    )


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise ConfigError(f"cannot read the {what} {path}: {err.strerror}") from err


def _check_mode(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"every user of this machine can open the key {path} (its mode is {mode:04o}); run "
            f"`chmod 600 {path}`, and make a new key if others may have read it"
        )


def _first(path: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as err:
        raise ConfigError(
            f"{path} holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----"
        ) from err


def _key(path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except TypeError as err:
        raise ConfigError(
            f"the key {path} is encrypted; decrypt it with `openssl pkey -in {path} -out NEW` and "
            "give NEW"
        ) from err
    except (ValueError, UnsupportedAlgorithm) as err:
        raise ConfigError(
            f"{path} holds no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
        ) from err


def _public(key: PrivateKeyTypes) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_dates(path: Path, leaf: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if leaf.not_valid_after_utc <= now:
        raise ConfigError(f"the certificate {path} ended at {leaf.not_valid_after_utc}; renew it")
    if leaf.not_valid_before_utc > now:
        raise ConfigError(
            f"the certificate {path} begins at {leaf.not_valid_before_utc}, and it is {now} by "
            "this machine's clock; correct the clock, or wait"
        )


def _check_use(path: Path, leaf: x509.Certificate) -> None:
    try:
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {*uses}:
        raise ConfigError(
            f"the certificate {path} is not for servers: its extended key usage lacks serverAuth"
        )


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = found.get_values_for_type(x509.IPAddress)
    return (*found.get_values_for_type(x509.DNSName), *map(str, addresses))


def _http_context(chain_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    # `load_cert_chain` takes only paths; the files themselves may have changed meanwhile.
    held = os.memfd_create("certificate")
    try:
        os.write(held, chain_pem + b"\n" + key_pem)
        context.load_cert_chain(f"/proc/self/fd/{held}")
    finally:
        os.close(held)
    return context
