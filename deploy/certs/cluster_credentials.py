"""The folder of one cluster's certificates: a folder in it for each process."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from baton.deploy.certs.authority import Authority, AuthorityFiles
from baton.deploy.files.state_file import folder as user_folder
from baton.rpc.identity import Identity, ProcessRole

_PREFIX = "certificates-"


class Issuer(Protocol):
    """The issuer of a cluster's certificates, each to a folder."""

    def folder_of(self, role: ProcessRole, name: str) -> Path:
        """Return where the files of a process are, or will be."""
        ...

    def issue(self, role: ProcessRole, name: str) -> Path:
        """Issue a process's certificate and return its folder. Raises DeployError."""
        ...

    def forget(self, role: ProcessRole, name: str) -> None:
        """Delete the files of a process that has left. Idempotent."""
        ...


class ClusterCredentials:
    """The authority of a running cluster, and what it has issued. Only paths leave this process."""

    def __init__(self, authority: Authority, cluster: str, folder: Path) -> None:
        """cluster: its name in certificates. folder: only this user may enter it."""
        self.cluster = cluster
        self._authority = authority
        self._folder = folder

    def folder_of(self, role: ProcessRole, name: str) -> Path:
        """Return where the files of a process are, or will be."""
        return self._folder / f"{name}.{role}"

    def issue(self, role: ProcessRole, name: str) -> Path:
        """Issue a process's certificate and return its folder. A restart finds it again."""
        folder = self.folder_of(role, name)
        self._authority.issue(Identity(role, name, self.cluster), folder)
        return folder

    def forget(self, role: ProcessRole, name: str) -> None:
        """Delete the files of a process that has left. Idempotent."""
        shutil.rmtree(self.folder_of(role, name), ignore_errors=True)


@contextmanager
def cluster_credentials(authority: AuthorityFiles | None) -> Iterator[ClusterCredentials]:
    """Make the folder of a new cluster, and delete it with the context.

    authority: the operator's; None: the cluster makes its own. Raises StartError.
    """
    _clean_up()
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=user_folder()))
    try:
        yield credentials_in(made, authority)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def credentials_in(folder: Path, authority: AuthorityFiles | None) -> ClusterCredentials:
    """Return the credentials of a new cluster, in a folder that only this user may enter.

    authority: the operator's; None: the cluster makes its own. Raises StartError.
    """
    # Never the same twice: one authority may sign for several clusters, and each admits its own.
    cluster = f"c{secrets.token_hex(4)}"
    signer = Authority.create(cluster) if authority is None else Authority.load(authority)
    return ClusterCredentials(signer, cluster, folder)


def _clean_up() -> None:
    """Delete the folders of this user's clusters whose process was killed."""
    for left in user_folder().glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not (pid.isdigit() and psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
