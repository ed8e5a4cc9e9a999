"""`baton certs`: what an operator with an authority of their own does."""

import stat
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.narrowing import present

from baton.cli.main import baton
from baton.core.role import Role
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.errors import DeployError
from baton.engine.settings.config import EngineConfig
from baton.rpc.credentials import Credentials


def run(folder: Path, *words: str) -> str:
    given = ("certs", *words, "--folder", str(folder))
    return CliRunner().invoke(baton, given, catch_exceptions=False).output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "secrets" / "authority"
    run(made, "init", "here")
    return made


def test_what_is_issued_is_what_a_process_reads(folder: Path) -> None:
    said = run(folder, "issue", "decode", "decode-3", "--days", "2")
    path = folder / "decode" / "decode-3"
    assert said.startswith(f"{path} ")
    credentials = Credentials(path)
    assert credentials.identity.dns_name == "decode-3.decode.here.baton"
    assert 47 * 3600 < credentials.seconds_left() <= 48 * 3600
    assert "decode  decode-3  until 2" in run(folder, "list")
    secret = [path for path in folder.rglob("*") if path.is_file() and path.suffix == ".key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert len(secret) == 2


def test_a_certificate_is_written_elsewhere_where_the_authority_cannot_be(
    folder: Path, tmp_path: Path
) -> None:
    run(folder, "issue", "router", "router-0")
    run(folder, "revoke", "router", "router-0")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()  # a volume that is mounted
    assert run(folder, "issue", "decode", "decode-3", "--to", str(elsewhere)).startswith(
        f"{elsewhere} "
    )
    credentials = Credentials(elsewhere)
    assert credentials.identity.dns_name == "decode-3.decode.here.baton"
    assert credentials.revokes("router-0.router.here.baton")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(DeployError, match="choose another name"):
        run(folder, "issue", "router", "router-0", "--to", str(elsewhere))


def test_a_revoked_name_stays_revoked_and_every_process_hears_of_it(folder: Path) -> None:
    for name in ("router-0", "router-1"):
        run(folder, "issue", "router", name)
    run(folder, "revoke", "router", "router-0")
    assert "router  router-0  revoked" in run(folder, "list")
    with pytest.raises(DeployError, match="choose another name"):
        run(folder, "issue", "router", "router-0")
    run(folder, "issue", "prefill", "prefill-0")
    for path in (folder / "router" / "router-1", folder / "prefill" / "prefill-0"):
        credentials = Credentials(path)
        assert credentials.revokes("router-0.router.here.baton")
        assert not credentials.revokes("router-1.router.here.baton")


def test_three_steps_lead_to_a_new_authority(folder: Path) -> None:
    run(folder, "issue", "router", "router-0")
    leaf = folder / "router" / "router-0"
    old = (folder / "ca.crt").read_bytes()
    first = (leaf / "tls.crt").read_bytes()
    assert "step 1 of 3" in run(folder, "rotate")
    assert (leaf / "ca.crt").read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert (leaf / "tls.crt").read_bytes() == first
    assert "rotation, step 1 of 3" in run(folder, "list")
    assert "step 2 of 3" in run(folder, "rotate")
    assert (leaf / "tls.crt").read_bytes() != first
    assert old in (leaf / "ca.crt").read_bytes()
    said = run(folder, "rotate")
    assert "step 3 of 3" in said and "again" not in said
    assert (leaf / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes() != old
    assert "rotation" not in run(folder, "list")
    Credentials(leaf)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("init", "here"), "has an authority already"),
        (("issue", "decode", "Decode_3"), "expected 1 to 63 characters"),
        (("revoke", "decode", "nobody"), "no certificate was issued"),
    ],
)
def test_what_cannot_be_is_said(folder: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(DeployError, match=message):
        run(folder, *words)


def test_a_folder_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="`baton certs init` makes one"):
        run(tmp_path, "issue", "decode", "decode-0")


def test_a_cluster_takes_its_certificates_from_there(folder: Path) -> None:
    config = ClusterConfig(EngineConfig(folder), authority=folder)
    with ExitStack() as held:
        wiring = Wiring.resolve_options(config, held)
        wiring.issue(Member(Role.DECODE, 0))
    router = Credentials(present(wiring.router().credentials))
    worker = wiring.worker(Member(Role.DECODE, 0)).credentials
    assert worker is not None
    assert router.identity.cluster == Credentials(worker).identity.cluster == "here"
    assert "decode  decode-0  until" in run(folder, "list")
    with pytest.raises(DeployError, match="`baton certs init` makes one"), ExitStack() as held:
        Wiring.resolve_options(replace(config, authority=folder / "nothing"), held)
