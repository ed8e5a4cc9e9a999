"""The proof of a process's identity, and what it asks of its peers.

Every connection between processes of a cluster is made and taken here: TLS with a certificate on
both sides, signed by the cluster's authority.
"""

import asyncio
import logging
import os
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from grpc import aio

from baton.core.errors import ConfigError, PeerLostError
from baton.proto.common_pb2 import DECODE, PREFILL, WorkerIdentity
from baton.rpc.connections import Connections
from baton.rpc.file_watcher import FileWatcher
from baton.rpc.identity import Identity, ProcessRole, any_router, identity_in
from baton.rpc.revoked import REVOKED, read_revoked

log = logging.getLogger(__name__)

CERT, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
"""The files of a process's folder, as Kubernetes names those of a TLS secret. `tls.crt`: the
certificate, then those between it and the authority; `ca.crt`: whose signatures count. `revoked`
may be there too: processes of the cluster that count no more."""

CHECK_S = 1.0
"""Seconds from one look of `watch` at the files to the next."""

_WORKER_ROLES = {PREFILL: ProcessRole.PREFILL, DECODE: ProcessRole.DECODE}

Options = tuple[tuple[str, int], ...]
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Material:
    """The content of the three files, which belong together."""

    cert: bytes
    key: bytes
    authorities: bytes
    identity: Identity
    ends: float  # Unix time

    def __repr__(self) -> str:
        return f"_Material({self.identity.dns_name})"  # the key must stand in no log


class Credentials:
    """The credentials in one folder. The files are read again when they have changed.

    Thread-safe: gRPC asks from its own threads. Pass the folder's path, never this object, to
    another process.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if a file is missing or readable by others, or if the files do not
        belong together."""
        self._folder = folder
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._material = _read(folder)
        self._channel: grpc.ChannelCredentials | None = None
        self._channel_of = self._material  # what `_channel` was made of
        self._edition = 1
        self._complaint = ""  # about files that cannot be used; it is logged once
        self.identity = self._material.identity
        self.connections = Connections()
        revoked = folder / REVOKED
        self._revoked = FileWatcher("the list of revoked processes", (revoked,),
                                 lambda: read_revoked(revoked))  # fmt: skip
        self._revoked_then = self._revoked.get()  # at the last look at the edition

    def __repr__(self) -> str:
        return f"Credentials({self.identity.dns_name} in {self._folder})"

    @property
    def edition(self) -> int:
        """The number of the files' content: another one after each change."""
        revoked = self._revoked.get()
        with self._lock:
            self._refresh()
            if revoked != self._revoked_then:
                self._revoked_then = revoked
                self._edition += 1
            return self._edition

    def server(self) -> grpc.ServerCredentials:
        """Return the credentials of a server that asks every client for a certificate."""
        with self._lock:
            served = self._material

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """Return the configuration for the next connection; None where it is the last one."""
            nonlocal served
            with self._lock:
                self._refresh()
                if self._material is served:
                    return None
                served = self._material
            return _configuration(served)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served), changed, require_client_authentication=True
        )

    def dial(self, address: str, dns_name: str, options: Options) -> aio.Channel:
        """Return a channel to `address` over which nobody but `dns_name` is spoken to.

        options: of the channel, see `rpc/channel_options.py`. Raises PeerLostError for a process
        whose certificate was revoked.
        """
        if self.revokes(dns_name):
            raise PeerLostError(f"the certificate of {dns_name} was revoked: nobody connects to it")
        self.connections.note(address, dns_name)
        named = ("grpc.ssl_target_name_override", dns_name)
        return aio.secure_channel(address, self._for_channels(), options=(*options, named))

    def dial_worker(self, peer: WorkerIdentity, options: Options) -> aio.Channel:
        """Return a channel to a worker of this cluster. Raises PeerLostError for an identity that
        no worker can have."""
        role = _WORKER_ROLES.get(peer.role)
        try:
            if role is None or not peer.address:
                raise ConfigError("it has no role or no address")
            expected = Identity(role, peer.worker_id, self.identity.cluster)
        except ConfigError as error:
            raise PeerLostError(f"cannot connect to worker {peer.worker_id!r}: {error}") from error
        return self.dial(peer.address, expected.dns_name, options)

    def dial_router(self, address: str, options: Options, name: str | None = None) -> aio.Channel:
        """Return a channel to the router of this name, or to whichever router of this cluster
        listens at `address`.
        """
        cluster = self.identity.cluster
        if name is None:
            return self.dial(address, any_router(cluster), options)
        return self.dial(address, Identity(ProcessRole.ROUTER, name, cluster).dns_name, options)

    def revokes(self, dns_name: str) -> bool:
        """Return True if that process's certificates count no more."""
        return dns_name in self._revoked.get()

    @property
    def doubts_routers(self) -> bool:
        """True where some router was revoked: each other one must then be dialled by its name."""
        revoked = map(Identity.parse, self._revoked.get())
        return any(each is not None and each.role is ProcessRole.ROUTER for each in revoked)

    def seconds_left(self) -> float:
        """Return the seconds until the certificate ends."""
        with self._lock:
            return self._material.ends - time.time()

    async def watch(self) -> None:
        """Look at the files every `CHECK_S` and end the connections of revoked processes, until
        cancelled. Every process that has servers or channels runs this.
        """
        while True:
            with self._lock:
                self._refresh()
            unwanted = set(self._revoked.get())
            if self.doubts_routers:
                unwanted.add(any_router(self.identity.cluster))
            for name in self.connections.cut(unwanted.__contains__) if unwanted else ():
                log.warning("ended connections with %s, whose certificate was revoked", name)
            await asyncio.sleep(CHECK_S)

    def _for_channels(self) -> grpc.ChannelCredentials:
        with self._lock:
            self._refresh()
            found = self._material
            if self._channel is None or self._channel_of is not found:
                self._channel_of = found
                self._channel = grpc.ssl_channel_credentials(
                    found.authorities, found.key, found.cert
                )
            return self._channel

    def _refresh(self) -> None:
        """Read the files again if they have changed. Keep what was there where they cannot be used:
        whoever replaces them may have written only some of them yet."""
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            material = _read(self._folder)
            if material.identity != self.identity:
                raise ConfigError(
                    f"{self._folder} now has the certificate of {material.identity.dns_name}; "
                    f"restart {self.identity.dns_name}, or put its own there"
                )
        except ConfigError as error:
            if str(error) != self._complaint:
                log.warning("kept the certificate from before: %s", error)
            self._complaint = str(error)
            return
        self._stamp, self._material, self._complaint = stamp, material, ""
        self._edition += 1
        log.info("read a new certificate", extra={"identity": self.identity.dns_name})

    def _stamp_now(self) -> _Stamp:
        try:
            found = [(self._folder / name).stat() for name in (CERT, KEY, AUTHORITIES)]
        except OSError as error:
            raise _unreadable(self._folder, error) from error
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def _read(folder: Path) -> _Material:
    """Return the content of a folder. Raises ConfigError."""
    try:
        cert, key, authorities = ((folder / n).read_bytes() for n in (CERT, KEY, AUTHORITIES))
        found = (folder / KEY).stat()
    except OSError as error:
        raise _unreadable(folder, error) from error
    mode = stat.S_IMODE(found.st_mode)
    # Kubernetes mounts a pod's secrets as files of root that the pod's group reads.
    mounted = found.st_uid == 0 and os.geteuid() != 0
    if mode & (0o037 if mounted else 0o077):
        raise ConfigError(
            f"{folder / KEY} may be read by other users (mode {mode:o}); run chmod 600 on it"
        )
    try:
        leaf = x509.load_pem_x509_certificate(cert)
        private = load_pem_private_key(key, None)
        x509.load_pem_x509_certificates(authorities)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"a file in {folder} is not the PEM it should be: {error}") from error
    if leaf.public_key() != private.public_key():
        raise ConfigError(f"{folder / KEY} is not the key of {folder / CERT}")
    identity = identity_in(_dns_names(leaf))
    if identity is None:
        raise ConfigError(
            f"{folder / CERT} names no process of a cluster; expected exactly one DNS name "
            "<name>.<role>.<cluster>.baton among its subject alternative names"
        )
    return _Material(cert, key, authorities, identity, leaf.not_valid_after_utc.timestamp())


def _dns_names(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(names.get_values_for_type(x509.DNSName))


def _configuration(material: _Material) -> grpc.ServerCertificateConfiguration:
    pair = (material.key, material.cert)
    return grpc.ssl_server_certificate_configuration([pair], material.authorities)


def _unreadable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot read a process's credentials: {error}; expected {CERT}, {KEY} and {AUTHORITIES} "
        f"in {folder}"
    )
