"""The authority of a cluster, and the folder of what it issues."""

import os
import subprocess
from pathlib import Path

import pytest
from certificates import CLUSTER, authority
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from baton.deploy.certs.authority import Authority, AuthorityFiles
from baton.deploy.certs.cluster_credentials import cluster_credentials
from baton.deploy.errors import StartError
from baton.deploy.files import state_file
from baton.rpc.credentials import AUTHORITIES, CERT, Credentials
from baton.rpc.identity import Identity, ProcessRole

DEADLINE_S = 60.0


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this user's clusters that no other test sees."""
    monkeypatch.setattr(state_file.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=DEADLINE_S)


def brought(folder: Path, *kind: str) -> AuthorityFiles:
    """Make an authority as an operator would, with openssl."""
    files = AuthorityFiles(folder / "ca.pem", folder / "ca.key")
    openssl("req", "-x509", "-newkey", *kind, "-nodes", "-days", "1", "-subj", "/CN=operator",
            "-keyout", str(files.key), "-out", str(files.cert))  # fmt: skip
    return files


@pytest.mark.parametrize("kind", [("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), ("rsa:2048",)])
def test_an_operators_authority_signs(own_tmp: Path, kind: tuple[str, ...]) -> None:
    files = brought(own_tmp, *kind)
    with cluster_credentials(files) as issued:
        folder = issued.issue(ProcessRole.DECODE, "decode-0")
        identity = Credentials(folder).identity
        assert (identity.name, identity.cluster) == ("decode-0", issued.cluster)
        openssl("verify", "-CAfile", str(files.cert), str(folder / CERT))
        assert (folder / AUTHORITIES).read_bytes() == files.cert.read_bytes()
        assert not [p for p in folder.parent.parent.rglob("*") if p.name == files.key.name]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda files: files.key.unlink(), "ca.key"),
        (lambda files: files.cert.write_text("x"), "ca.pem"),
        (lambda files: files.key.write_text("x"), "ca.key"),
        (lambda files: openssl("genpkey", "-algorithm", "ed25519", "-out", str(files.key)), "EC"),
        (lambda files: openssl("genpkey", "-algorithm", "EC", "-pkeyopt",
                               "ec_paramgen_curve:P-256", "-out", str(files.key)), "not the key"),
    ],
)  # fmt: skip
def test_an_authority_that_cannot_sign_is_named(own_tmp: Path, spoil: object, named: str) -> None:
    files = brought(own_tmp, "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    spoil(files)  # type: ignore[operator]
    with pytest.raises(StartError, match=named), cluster_credentials(files):
        pass


def test_a_leaf_is_no_authority(own_tmp: Path, tmp_path: Path) -> None:
    authority().issue(Identity(ProcessRole.DECODE, "d0", CLUSTER), tmp_path / "leaf")
    files = AuthorityFiles(tmp_path / "leaf" / CERT, tmp_path / "leaf" / "tls.key")
    with pytest.raises(StartError, match="no authority"):
        Authority.load(files)


def test_each_cluster_has_a_name_and_an_authority_of_its_own(own_tmp: Path) -> None:
    with cluster_credentials(None) as one, cluster_credentials(None) as other:
        folders = [each.issue(ProcessRole.ROUTER, "router-0") for each in (one, other)]
        assert one.cluster != other.cluster
        assert (folders[0] / AUTHORITIES).read_bytes() != (folders[1] / AUTHORITIES).read_bytes()
        held = list(own_tmp.rglob("*"))
        for folder in folders:
            certs = folder / AUTHORITIES, folder / CERT
            openssl("verify", "-x509_strict", "-CAfile", *map(str, certs))
        assert {p.stat().st_mode & 0o077 for p in held} == {0}, "others may look"
        key = one._authority._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        assert all(key not in p.read_bytes() for p in held if p.is_file())
    assert not [p for p in own_tmp.rglob("*") if p.is_file()], "the folder goes with the cluster"


def test_a_worker_that_leaves_takes_its_certificate_along(own_tmp: Path) -> None:
    with cluster_credentials(None) as issued:
        folder = issued.issue(ProcessRole.DECODE, "decode-1")
        issued.forget(ProcessRole.DECODE, "decode-1")
        issued.forget(ProcessRole.DECODE, "decode-1")
        assert not folder.exists()


def test_folders_of_killed_clusters_are_deleted_and_those_of_running_ones_kept(
    own_tmp: Path,
) -> None:
    root = state_file.folder()
    dead, alive = root / "certificates-4194305-x", root / f"certificates-{os.getpid()}-x"
    for folder in (dead, alive):  # no pid is above 4194304
        folder.mkdir()
    with cluster_credentials(None):
        assert not dead.exists() and alive.exists()


def test_a_certificate_ends_no_later_than_its_authority(own_tmp: Path) -> None:
    files = brought(own_tmp, "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    with cluster_credentials(files) as issued:
        folder = issued.issue(ProcessRole.DECODE, "decode-0")
        leaf, signer = (
            x509.load_pem_x509_certificate(path.read_bytes())
            for path in (folder / CERT, files.cert)
        )
        assert leaf.not_valid_after_utc <= signer.not_valid_after_utc
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
