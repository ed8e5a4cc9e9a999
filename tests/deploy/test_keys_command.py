"""`baton keys`, and what `baton serve` and `baton status` do with keys."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deploy.wired import wired

from baton.api.access.keys import KeyScope, digest_of, read_keys
from baton.cli.main import baton
from baton.deploy.client.router_client import RouterClient
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.errors import DeployError, NotRunning, StartError
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

BEN = (
    "ben  infer  requests_per_minute=60  tokens_per_minute=5000  concurrent_requests=4  max_n=2  "
    "max_priority=-3  share=5"
)


def run(*words: str, **options: object) -> Result:
    return CliRunner().invoke(baton, words, catch_exceptions=False, **options)  # type: ignore[arg-type]


def test_a_key_is_printed_once_listed_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "keys.json"
    at = ("--file", str(file))
    text = run("keys", "add", "ada", "--scope", "infer", "--scope", "admin", *at).output.strip()
    caps = {
        "requests_per_minute": 60,
        "tokens_per_minute": 5000,
        "concurrent_requests": 4,
        "max_n": 2,
        "max_priority": -3,
        "share": 5,
    }
    words = [(f"--{name.replace('_', '-')}", str(most)) for name, most in caps.items()]
    run("keys", "add", "ben", *(word for pair in words for word in pair), *at)
    ada, ben = read_keys(file)
    assert ada.sha256 == digest_of(text)
    assert ada.scopes == {KeyScope.INFER, KeyScope.ADMIN}
    assert (ben.scopes, ben.caps) == ({KeyScope.INFER}, caps)
    listed = run("keys", "list", *at).output
    assert listed.splitlines() == ["ada  admin,infer", BEN]
    with pytest.raises(DeployError, match="a key 'ada' already"):
        run("keys", "add", "ada", *at)
    run("keys", "rm", "ada", *at)
    assert read_keys(file) == (ben,)
    with pytest.raises(DeployError, match="no key 'ada'"):
        run("keys", "rm", "ada", *at)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "models.example"])
def test_serve_refuses_an_open_address_without_keys(host: str) -> None:
    with pytest.raises(StartError, match=r"--api-keys FILE .* or --insecure"):
        run("serve", "--model", "m", "--host", host)


@pytest.mark.parametrize(
    "words", [("--host", "127.0.0.1"), ("--host", "::1"), ("--host", "0.0.0.0", "--insecure")]
)
def test_serve_goes_on_where_nobody_else_can_call_or_that_is_wanted(
    words: tuple[str, ...],
) -> None:
    with pytest.raises(StartError, match="no such folder"):
        run("serve", "--model", "/no/such/folder", *words)


def test_keys_open_an_address_to_the_network(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    run("keys", "add", "ada", "--file", str(file))
    with pytest.raises(StartError, match="no such folder"):
        run("serve", "--model", "/no/such", "--host", "0.0.0.0", "--api-keys", str(file))


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_caches_are_kept_apart_by_key_only_where_there_are_keys(
    tmp_path: Path, command: str
) -> None:
    with pytest.raises(StartError, match="--cache-scope key needs --api-keys FILE"):
        run(command, "--model", str(tmp_path), "--cache-scope", "key")


def test_a_cluster_shows_the_key_of_its_operator_nowhere(tmp_path: Path) -> None:
    config = ClusterConfig(
        EngineConfig(tmp_path), RouterConfig(tmp_path, api_keys=tmp_path / "keys")
    )
    wiring = wired(config)
    assert wiring.operator_key not in repr(wiring) + repr(wiring.router())
    assert wiring.router().operator_sha256 == digest_of(wiring.operator_key)
    assert wiring.router().api_keys == config.router.api_keys


class Strict(BaseHTTPRequestHandler):
    """A router that answers the key `right` alone."""

    def do_GET(self) -> None:
        right = self.headers.get("Authorization") == "Bearer right"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"version": "1"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture
def strict() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Strict) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def test_status_sends_its_key(strict: str) -> None:
    told = ("status", "--json", "--url", strict)
    assert "version" in run(*told, "--api-key", "right").output
    assert "version" in run(*told, env={"BATON_API_KEY": "right"}).output
    with pytest.raises(NotRunning, match="401"):
        run(*told)
    assert "right" not in repr(RouterClient(strict, "right"))
