"""The certificates that commands accept: of their own cluster, and of others."""

import datetime as dt
import json
import os
import shlex
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from https_certificates import TestAuthority

from baton.bench.cluster.stream_client import RequestFailed, exchange
from baton.cli.main import baton
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import PinnedCertificate
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.errors import DeployError, NotRunning
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import ClusterState, folder, process_named, published
from baton.deploy.options.access import readable_on_the_way
from baton.deploy.terminal.startup_banner import curl_line
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.rpc.server_certificate import CertificateFiles


class Informing(BaseHTTPRequestHandler):
    """A router that says its version."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"version": "1"}).encode())

    def do_POST(self) -> None:
        """Say which key came."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.headers["Authorization"]).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@contextmanager
def https(files: CertificateFiles) -> Iterator[str]:
    """The URL of a server with this certificate, on 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with HTTPServer(("127.0.0.1", 0), Informing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(60)


def test_the_operators_own_certificate_is_trusted_whatever_it_names(tmp_path: Path) -> None:
    authority = TestAuthority.make()
    own = authority.issue(tmp_path / "own", "models.example", ends=-dt.timedelta(seconds=1))
    with own.certificate.open("ab") as chain:
        chain.write(authority.pem)
    twin = authority.issue(tmp_path / "twin", "models.example", "127.0.0.1")
    trust = PinnedCertificate(own.certificate)
    with https(own) as url:
        assert RouterClient(url, trust=trust).server_info() == {"version": "1"}
    with https(twin) as url, pytest.raises(NotRunning, match=r"is not trusted: .* --cacert"):
        RouterClient(url, trust=trust).server_info()


def test_old_and_new_are_trusted_while_the_server_changes_from_one_to_the_other(
    tmp_path: Path,
) -> None:
    old = TestAuthority.make("old").issue(tmp_path / "old")
    new = TestAuthority.make("new").issue(tmp_path / "new")
    path = tmp_path / "certificate.pem"
    path.write_bytes(old.certificate.read_bytes())
    trust = PinnedCertificate(path)
    with https(old) as url:
        RouterClient(url, trust=trust).server_info()
        path.write_bytes(new.certificate.read_bytes())
        RouterClient(url, trust=trust).server_info()
    path.write_text("half a fi")
    with https(new) as url:
        RouterClient(url, trust=trust).server_info()


def status(*words: str) -> str:
    return CliRunner().invoke(baton, ("status", "--json", *words), catch_exceptions=False).output


def state(url: str, certificate: Path) -> ClusterState:
    process = process_named(os.getpid())
    return ClusterState("n", *process, 0.0, "m", [url], "127.0.0.1:2", "c", str(certificate))


def test_status_finds_and_trusts_its_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = TestAuthority.make().issue(tmp_path / "tls", "models.example")
    with (
        https(files) as url,
        owned_folder(folder()) as own,
        published(own, state(url, files.certificate)) as file,
    ):
        file.serves()
        assert "version" in status()


def test_status_trusts_another_cluster_by_its_authority_alone(tmp_path: Path) -> None:
    authority, stranger = TestAuthority.make(), TestAuthority.make()
    ours, theirs = (
        each.write(tmp_path / f"{n}.pem") for n, each in enumerate((authority, stranger))
    )
    with https(authority.issue(tmp_path / "tls")) as url:
        assert "version" in status("--url", url, "--cacert", str(ours))
        for words in ((), ("--cacert", str(theirs))):
            with pytest.raises(NotRunning, match=r"is not trusted: .* --cacert"):
                status("--url", url, *words)
    with https(authority.issue(tmp_path / "tls", "models.example")) as url:
        with pytest.raises(NotRunning, match=r"is not trusted: .*mismatch.*; call"):
            status("--url", url, "--cacert", str(ours))
    theirs.write_text("nothing")
    with pytest.raises(DeployError, match="holds no certificate"):
        status("--url", "https://127.0.0.1:1", "--cacert", str(theirs))


def test_the_command_to_try_works_as_it_is(tmp_path: Path) -> None:
    plain = shlex.split(curl_line("http://127.0.0.1:8000", "it's", "a'b", keys=False, trusted=None))
    assert plain[:2] == ["curl", "http://127.0.0.1:8000/v1/completions"]
    assert json.loads(plain[-1])["model"] == "it's"
    assert not any("Authorization" in word for word in plain)
    guarded = shlex.split(
        curl_line("https://models.example:8000", "m", "p", keys=True, trusted=Path("/a b/c.pem"))
    )
    assert guarded[:4] == [
        "curl", "--cacert", "/a b/c.pem", "https://models.example:8000/v1/completions"
    ]  # fmt: skip
    assert "Authorization: Bearer $BATON_API_KEY" in guarded


@pytest.mark.parametrize(
    ("host", "keys", "tls", "words"),
    [
        ("127.0.0.1", True, False, None),
        ("::1", False, False, None),
        ("0.0.0.0", True, True, None),
        ("0.0.0.0", True, False, "API keys, prompts and answers travel readable"),
        ("10.0.0.1", False, False, "Prompts and answers travel readable"),
    ],
)
def test_an_operator_hears_what_travels_readable(
    host: str, keys: bool, tls: bool, words: str | None, tmp_path: Path
) -> None:
    files = CertificateFiles(tmp_path / "c", tmp_path / "k") if tls else None
    found = readable_on_the_way(host, tmp_path if keys else None, files)
    assert found is None if words is None else words in (found or "")


def test_a_cluster_asks_its_own_router_over_tls_with_its_own_key(
    tmp_path: Path, tiny: Path
) -> None:
    files = TestAuthority.make().issue(tmp_path / "tls", "models.example")
    config = ClusterConfig(
        EngineConfig(tiny, memory_bytes=64 << 20),
        RouterConfig(tiny, client_tls=files, api_keys=tmp_path / "keys"),
    )
    cluster = Cluster(config)
    address = cluster.address
    cluster._held.close()
    assert address.url == cluster.http_url and address.url.startswith("https://127.0.0.1:")
    assert address.api_key and address.api_key not in repr(address)
    with https(files) as url:
        assert RouterClient(url, address.api_key, address.trust).server_info() == {"version": "1"}


async def test_the_benchmarks_client_sends_a_key_over_tls(tmp_path: Path) -> None:
    files = TestAuthority.make().issue(tmp_path / "tls", "models.example")
    with https(files) as url:
        server = RouterAddress(url, "right", PinnedCertificate(files.certificate))
        reply = await exchange(server, {}, 60)
        with pytest.raises(RequestFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await exchange(RouterAddress(url), {}, 60)
    assert b"Bearer right" in b"".join(read.data for read in reply.reads)
