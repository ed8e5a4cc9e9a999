"""A cluster on a Ray that somebody else runs: it serves there, and leaves it as it was."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from deploy.some_ray import DEADLINE_S, SomeRay, some_ray

from baton.deploy.files.state_file import ClusterState

pytestmark = pytest.mark.chaos  # by its length: two starts of Ray


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SomeRay]:
    """A Ray with 5 CPUs in its books that asks for a token."""
    with some_ray(tmp_path_factory.mktemp("ray"), "127.0.0.1", "--num-cpus", "5") as ray:
        yield ray


def _state(folder: Path, serve: "subprocess.Popen[str]") -> ClusterState:
    """Wait until the cluster serves, and return the state that it published."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for path in folder.glob("baton-*/*/state.json"):
            return ClusterState(**json.loads(path.read_text()))
        assert serve.poll() is None, serve.communicate()
        time.sleep(0.2)
    raise AssertionError("it did not serve in time")


def _actors(process: "subprocess.Popen[bytes]") -> list[str]:
    """Workers and routers under that Ray, by the names that Ray gives their processes."""
    names = [" ".join(p.cmdline()) for p in psutil.Process(process.pid).children(recursive=True)]
    return [name for name in names if name.startswith(("ray::RouterHost", "ray::WorkerHost"))]


def test_a_cluster_serves_grows_and_goes_on_a_joined_ray(
    head: SomeRay, tiny: Path, tmp_path: Path
) -> None:
    address, ray = head.address, head.processes["127.0.0.1"]
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    # Ray's own files lie under /tmp whatever this says: a socket's path must be short.
    env = os.environ | head.env | {"TMPDIR": str(tmp_path)}
    baton = [sys.executable, "-m", "baton.cli.main"]
    words = ["serve", "--model", str(tiny), "--ray-address", address, "--memory-gb", "0.25",
             "--threads", "1", "--http-port", "0", "--grpc-port", "0"]  # fmt: skip
    refused = subprocess.run(
        baton + words, env=env | {"RAY_AUTH_TOKEN_PATH": str(wrong)}, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert f"Ray at {address} does not answer" in refused.stderr
    assert "RAY_AUTH_TOKEN_PATH must name a file with its token" in refused.stderr
    with subprocess.Popen(
        baton + words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as serve:
        url = _state(tmp_path, serve).http_url
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()
        asked = urllib.request.Request(
            f"{url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] == 3
        grown = subprocess.run(
            [*baton, "scale", "decode=2"], env=env, capture_output=True, text=True,
            timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        assert grown.stdout.endswith("decode: 2 (decode-0, decode-1)\n")
        assert len(_actors(ray)) == 4
        serve.send_signal(signal.SIGTERM)
        said, _ = serve.communicate(timeout=DEADLINE_S)
    assert serve.returncode == 0 and said.endswith("stopped\n")
    until = time.monotonic() + DEADLINE_S
    while _actors(ray):
        assert time.monotonic() < until, "it left actors behind"
        time.sleep(0.2)
    assert ray.poll() is None


def test_the_loss_of_its_control_store_is_named_and_ends_serve(
    head: SomeRay, tiny: Path, tmp_path: Path
) -> None:
    env = os.environ | head.env | {"TMPDIR": str(tmp_path)}
    words = ["serve", "--model", str(tiny), "--ray-address", head.address, "--memory-gb", "0.25",
             "--threads", "1", "--http-port", "0", "--grpc-port", "0"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "baton.cli.main", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as serve:
        _state(tmp_path, serve)
        under = psutil.Process(head.processes["127.0.0.1"].pid).children(recursive=True)
        (store,) = [process for process in under if process.name() == "gcs_server"]
        store.kill()
        said, _ = serve.communicate(timeout=DEADLINE_S)
    assert serve.returncode == 1
    port = head.address.rpartition(":")[2]  # Ray names the host as it likes
    lines = [line for line in said.splitlines() if line.startswith("baton: Ray's control store at")]
    first, last = lines
    assert f":{port} does not answer" in first and " s unless it answers again" in first
    assert f":{port} has ended, so that no worker would be started again" in last
