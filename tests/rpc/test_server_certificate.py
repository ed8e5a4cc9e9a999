"""The certificate for clients: what its files must be, and what happens when they change."""

import datetime as dt
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from https_certificates import DAY, TestAuthority, key_pem

from baton.core.errors import ConfigError
from baton.rpc.file_watcher import RECHECK_S, FileWatcher
from baton.rpc.server_certificate import CertificateFiles, read_server_certificate

Spoil = Callable[[CertificateFiles, TestAuthority, Path], object]


@pytest.fixture(scope="module")
def authority() -> TestAuthority:
    return TestAuthority.make()


def test_a_good_pair_is_read_with_its_names_and_its_end(
    authority: TestAuthority, tmp_path: Path
) -> None:
    files = authority.issue(tmp_path / "tls", "models.example", "127.0.0.1", ends=2 * DAY)
    found = read_server_certificate(files)
    assert found.names == ("models.example", "127.0.0.1")
    assert not found.self_signed
    begun = (found.ends - 2 * DAY).timestamp()
    assert found.seconds_left(lambda: begun) == 2 * DAY.total_seconds()
    assert found.key_pem.decode() not in repr(found)


def test_a_chain_and_a_key_that_a_group_can_read_are_good(
    authority: TestAuthority, tmp_path: Path
) -> None:
    files = authority.issue(tmp_path / "tls")
    with files.certificate.open("ab") as chain:
        chain.write(authority.pem)
    files.key.chmod(0o640)
    assert read_server_certificate(files).names == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda files, ca, folder: files.certificate.unlink(), "cannot read the certificate .*No "),
        (lambda files, ca, folder: files.key.unlink(), "cannot read the key .*No such file"),
        (lambda files, ca, folder: files.key.chmod(0o604), "every user .*0604.*chmod 600"),
        (lambda files, ca, folder: files.certificate.write_text("x"), "holds no certificate in"),
        (lambda files, ca, folder: files.key.write_text("x"), "holds no private key in PEM"),
        (
            lambda files, ca, folder: files.key.write_bytes(
                key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret")
            ),
            "is encrypted; decrypt it with `openssl pkey",
        ),
        (
            lambda files, ca, folder: shutil.copy(ca.issue(folder / "other").key, files.key),
            "does not belong to the certificate",
        ),
        (
            lambda files, ca, folder: ca.issue(folder / "tls", ends=-dt.timedelta(seconds=1)),
            "ended at .*; renew it",
        ),
        (
            lambda files, ca, folder: ca.issue(folder / "tls", begins=DAY, ends=2 * DAY),
            "begins at .* by this machine's clock",
        ),
        (
            lambda files, ca, folder: ca.issue(
                folder / "tls", uses=(ExtendedKeyUsageOID.CLIENT_AUTH,)
            ),
            "lacks serverAuth",
        ),
    ],
    ids=["no certificate", "no key", "readable by all", "not PEM", "key not PEM", "encrypted",
         "another's key", "expired", "too early", "a client's"],
)  # fmt: skip
def test_what_is_wrong_is_said(
    authority: TestAuthority, tmp_path: Path, spoil: Spoil, words: str
) -> None:
    files = authority.issue(tmp_path / "tls")
    spoil(files, authority, tmp_path)
    with pytest.raises(ConfigError, match=words):
        read_server_certificate(files)


def test_changed_files_are_read_again_but_not_more_often_than_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now, reads = tmp_path / "value", 0.0, 0
    path.write_text("1")

    def read() -> int:
        nonlocal reads
        reads += 1
        text = path.read_text()
        if not text.isdigit():
            raise ConfigError(f"{text!r} is no number")
        return int(text)

    watcher = FileWatcher("the number", (path,), read, lambda: now)
    path.write_text("22")
    assert watcher.get() == 1, "it was looked at just now"
    now = RECHECK_S
    assert [watcher.get() for _ in range(3)] == [22] * 3
    assert reads == 2
    path.write_text("many")
    now = 2 * RECHECK_S
    with caplog.at_level(logging.ERROR):
        assert watcher.get() == 22
    assert "the number of before stays in use: 'many' is no number" in caplog.text
    path.unlink()
    path.write_text("333")
    now = 3 * RECHECK_S
    assert watcher.get() == 333
    with pytest.raises(ConfigError):
        path.write_text("x")
        FileWatcher("the number", (path,), read)
