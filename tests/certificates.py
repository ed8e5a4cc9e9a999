"""One authority for all tests of a session, and what it has issued."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from baton.deploy.certs.authority import Authority
from baton.rpc.credentials import Credentials
from baton.rpc.identity import Identity, ProcessRole

CLUSTER = "tests"
_FOLDER = Path(tempfile.mkdtemp(prefix="baton-tests-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


@cache
def _authority(name: str) -> Authority:
    return Authority.create(CLUSTER)


def authority(name: str = "ours") -> Authority:
    """Return an authority; those with other names sign for strangers."""
    return _authority(name)


def folder_of(
    role: ProcessRole | str, name: str, signed_by: str = "ours", cluster: str = CLUSTER
) -> Path:
    """Return the folder with a process's certificate."""
    return _issued(ProcessRole(role), name, signed_by, cluster)


@cache
def _issued(role: ProcessRole, name: str, signed_by: str, cluster: str) -> Path:
    folder = _FOLDER / f"{name}.{role}.{cluster}.{signed_by}"
    authority(signed_by).issue(Identity(role, name, cluster), folder)
    return folder


def credentials_of(
    role: ProcessRole | str, name: str, signed_by: str = "ours", cluster: str = CLUSTER
) -> Credentials:
    return Credentials(folder_of(role, name, signed_by, cluster))


def router() -> Credentials:
    """Return the credentials of a router that a test plays."""
    return credentials_of(ProcessRole.ROUTER, "router-0")


def operator() -> Credentials:
    return credentials_of(ProcessRole.OPERATOR, "operator-0")
