"""An operator's own authority in a folder: what it issued, what was revoked, and its rotation."""

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from cryptography import x509

from baton.deploy.certs.authority import VALID, Authority, AuthorityFiles, write_private
from baton.deploy.errors import DeployError
from baton.rpc.credentials import AUTHORITIES, CERT
from baton.rpc.identity import SUFFIX, Identity, ProcessRole
from baton.rpc.revoked import REVOKED, read_revoked

MOST_DAYS = VALID.days
_CLUSTER = "cluster"
_CA_KEY = "ca.key"
_NEXT = "next"
_ROTATION = "rotation"


class RotationStep(StrEnum):
    """The step that a rotation has taken last."""

    TRUSTED = "trusted"  # every process trusts the old authority and the new one
    ISSUED = "issued"  # every process has a certificate of the new one


@dataclass(frozen=True)
class Issued:
    """A certificate that the authority has issued."""

    identity: Identity
    folder: Path
    ends: datetime.datetime
    revoked: bool


class AuthorityFolder:
    """A folder with an authority, and for each process a folder `<role>/<name>` in it.

    The operator copies a process's folder to that process's machine, again after every change here.
    The authority's key never leaves this folder.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DeployError if there is no authority."""
        self.folder = folder
        try:
            self.cluster = (folder / _CLUSTER).read_text().strip()
        except OSError as err:
            raise DeployError(
                f"{folder} has no authority ({err.strerror}); `baton certs init` makes one"
            ) from err

    @classmethod
    def create(cls, folder: Path, cluster: str) -> Self:
        """Make a new authority. Raises DeployError if there is one, ConfigError for a name that no
        certificate can carry.
        """
        Identity(ProcessRole.OPERATOR, "operator", cluster)  # checks the name
        if (folder / _CLUSTER).exists():
            raise DeployError(f"{folder} has an authority already; name another folder")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_authority(folder, Authority.create(cluster))
            write_private(folder / _CLUSTER, cluster.encode())
        except OSError as err:
            raise DeployError(f"cannot write to {folder}: {err.strerror}") from err
        return cls(folder)

    @property
    def rotation(self) -> RotationStep | None:
        """The last step of a rotation that has not ended."""
        try:
            return RotationStep((self.folder / _ROTATION).read_text())
        except FileNotFoundError:
            return None

    def folder_of(self, role: ProcessRole, name: str) -> Path:
        """Return where the files of a process are, or will be."""
        return self.folder / role / name

    def issue(
        self, role: ProcessRole, name: str, days: int = MOST_DAYS, to: Path | None = None
    ) -> Path:
        """Issue a process's certificate, its first or a new one, and return its folder.

        to: the folder to write; None: that of the process in this one. Nothing is written here
        otherwise: `issued` does not know the certificate, and a file system may be read-only.
        Raises DeployError for a revoked name, ConfigError for one that no certificate can carry.
        """
        identity = Identity(role, name, self.cluster)
        if identity.dns_name in self._revoked():
            raise DeployError(
                f"{role} {name} was revoked, and its peers refuse that name for good; choose "
                "another name"
            )
        folder = to or self.folder_of(role, name)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        valid = datetime.timedelta(days=days)
        self._signer().issue(identity, folder, valid, self._trusted())
        self._copy_revoked(folder)
        return folder

    def forget(self, role: ProcessRole, name: str) -> None:
        """Delete the files of a process that has left. Idempotent."""
        shutil.rmtree(self.folder_of(role, name), ignore_errors=True)

    def issued(self) -> Iterator[Issued]:
        """Yield what was issued, by role and name."""
        revoked = self._revoked()
        for path in sorted(self.folder.glob(f"*/*/{CERT}")):
            name, role = path.parent.name, path.parent.parent.name
            identity = Identity.parse(f"{name}.{role}.{self.cluster}.{SUFFIX}")
            if identity is not None:
                ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
                yield Issued(identity, path.parent, ends, identity.dns_name in revoked)

    def revoke(self, role: ProcessRole, name: str) -> None:
        """Revoke all certificates of a process, those of the past and any of the future.

        Raises DeployError if none was issued.
        """
        identity = Identity(role, name, self.cluster)
        if identity not in {each.identity for each in self.issued()}:
            raise DeployError(
                f"no certificate was issued to {role} {name}; `baton certs list` shows those that "
                "were"
            )
        names = sorted(self._revoked() | {identity.dns_name})
        write_private(self.folder / REVOKED, "".join(f"{each}\n" for each in names).encode())
        for each in self.issued():
            self._copy_revoked(each.folder)

    def rotate(self) -> RotationStep | None:
        """Take the next step to a new authority. Return the step; None: the rotation has ended.

        Every process must have the folders of one step before the next is taken.
        """
        step = self.rotation
        if step is None:
            (self.folder / _NEXT).mkdir(mode=0o700, exist_ok=True)
            _write_authority(self.folder / _NEXT, Authority.create(self.cluster))
            return self._took(RotationStep.TRUSTED)
        if step is RotationStep.TRUSTED:
            write_private(self.folder / _ROTATION, RotationStep.ISSUED.encode())
            for each in self._valid():
                left = each.ends - datetime.datetime.now(datetime.UTC)
                self.issue(each.identity.role, each.identity.name, max(1, left.days))
            return RotationStep.ISSUED
        for name in (_CA_KEY, AUTHORITIES):
            (self.folder / _NEXT / name).replace(self.folder / name)
        shutil.rmtree(self.folder / _NEXT)
        (self.folder / _ROTATION).unlink()
        for each in self._valid():
            write_private(each.folder / AUTHORITIES, self._trusted())
        return None

    def _took(self, step: RotationStep) -> RotationStep:
        write_private(self.folder / _ROTATION, step.encode())
        for each in self._valid():
            write_private(each.folder / AUTHORITIES, self._trusted())
        return step

    def _valid(self) -> list[Issued]:
        return [each for each in self.issued() if not each.revoked]

    def _signer(self) -> Authority:
        new = self.rotation is RotationStep.ISSUED
        return _read_authority(self.folder / _NEXT if new else self.folder)

    def _trusted(self) -> bytes:
        """Return the certificates of the authorities that count, in PEM."""
        present = (self.folder / AUTHORITIES).read_bytes()
        if self.rotation is None:
            return present
        return present + (self.folder / _NEXT / AUTHORITIES).read_bytes()

    def _revoked(self) -> frozenset[str]:
        return read_revoked(self.folder / REVOKED)

    def _copy_revoked(self, folder: Path) -> None:
        if (self.folder / REVOKED).exists():
            write_private(folder / REVOKED, (self.folder / REVOKED).read_bytes())


def _write_authority(folder: Path, authority: Authority) -> None:
    write_private(folder / _CA_KEY, authority.key_pem)
    write_private(folder / AUTHORITIES, authority.pem)


def _read_authority(folder: Path) -> Authority:
    return Authority.load(AuthorityFiles(folder / AUTHORITIES, folder / _CA_KEY))
