"""A Ray of our own that does not start at the first try. Ray itself is the neighbour here."""

import inspect
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from kit.polling import wait_until
from ray._private import services, worker

from baton.deploy.cluster import ray_start
from baton.deploy.cluster.ray_start import LOOPBACK, RayConfig
from baton.deploy.errors import StartError

resolve = services.resolve_ip_for_localhost


class FailingRay:
    """`init` leaves a process behind, and one that has ended, and fails, until `failures` are used
    up."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[dict[str, object]] = []
        self.address = ""  # where it would listen
        self.shut = False
        self.left: list[psutil.Process] = []
        self.handles: list[subprocess.Popen[bytes]] = []

    def init(self, **options: object) -> None:
        self.calls.append(options)
        self.address = services.resolve_ip_for_localhost(LOOPBACK)
        if self.failures:
            self.failures -= 1
            self.handles += [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["true"])]
            living, ended = (psutil.Process(each.pid) for each in self.handles[-2:])
            wait_until(lambda: ended.status() == psutil.STATUS_ZOMBIE)
            self.left.append(living)
            raise Exception("The current node timed out during startup.")

    def shutdown(self) -> None:
        self.shut = True

    def close(self) -> None:
        for process in self.handles:
            process.kill()
            process.wait()


@pytest.fixture
def bystander() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingRay]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    with closing(FailingRay(failures=3)) as fake:
        monkeypatch.setattr(ray, "init", fake.init)
        monkeypatch.setattr(ray, "shutdown", fake.shutdown)
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: fake.address)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        yield fake


def test_it_is_tried_again_and_leaves_nothing_behind(
    fake: FailingRay, bystander: psutil.Process, tmp_path: Path
) -> None:
    fake.failures = 2
    ray_start.connect(RayConfig(folder=tmp_path))
    assert len(fake.calls) == 3
    assert [handle.returncode for handle in fake.handles].count(None) == 0, "or they warn later"
    assert len(fake.left) == 2 and not any(process.is_running() for process in fake.left)
    assert bystander.is_running()


def test_in_the_end_it_says_why_and_what_ran(fake: FailingRay, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"on this machine .* timed out .*; .* sleep \("):
        ray_start.connect(RayConfig(folder=tmp_path))


def test_a_ray_of_our_own_is_given_loopback_and_a_token_of_its_own(
    fake: FailingRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the operator's, for another Ray")
    fake.failures = 0
    ray_start.connect(RayConfig(folder=tmp_path))
    (options,) = fake.calls
    assert options["_node_ip_address"] == fake.address == LOOPBACK
    assert options["_temp_dir"] == str(tmp_path)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.parent == tmp_path and token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64
    assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ
    assert services.resolve_ip_for_localhost is resolve, "Ray is as it was"


def test_a_ray_that_listens_elsewhere_is_stopped(
    fake: FailingRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later Ray may find its address by another function than the one that we replace."""
    fake.failures = 0
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(StartError, match=r"listens on 192\.0\.2\.7 instead of loopback"):
        ray_start.connect(RayConfig(folder=tmp_path))
    assert fake.shut


def test_ray_still_asks_the_function_that_we_replace() -> None:
    """It replaces loopback by the machine's own address."""
    asked = inspect.getsource(ray._private.worker)
    assert "services.resolve_ip_for_localhost(_node_ip_address)" in asked
    assert list(inspect.signature(resolve).parameters) == ["host"]


def test_a_ray_that_others_run_is_asked_once(
    fake: FailingRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(StartError, match=r"Ray at 127.0.0.1:6379 does not answer: .*timed out"):
        ray_start.connect(RayConfig(address="127.0.0.1:6379"))
    assert len(fake.calls) == 1 and os.environ["RAY_AUTH_MODE"] == "token"


def test_joining_without_a_token_says_what_is_missing(
    fake: FailingRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StartError, match=r"needs its token: set RAY_AUTH_TOKEN_PATH .*auth_token"):
        ray_start.connect(RayConfig(address="127.0.0.1:6379"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(StartError, match="RAY_AUTH_MODE is disabled"):
        ray_start.connect(RayConfig(address="127.0.0.1:6379"))
    assert not fake.calls


class _Told:
    """Ray's driver, to which these errors are told."""

    def __init__(self, *messages: str) -> None:
        self.current_job_id = ray.JobID.nil()
        self.gcs_error_subscriber = self
        self._left = list(messages)

    def subscribe(self) -> None: ...

    def poll(self) -> tuple[None, dict[str, Any]]:
        if not self._left:
            raise ConnectionError("Ray has ended")
        return None, {"job_id": None, "error_message": self._left.pop(0)}


def test_what_ray_tells_of_workers_is_not_printed_but_that_memory_ran_out(
    fake: FailingRay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # to restore it
    fake.failures = 0
    ray_start.connect(RayConfig(folder=tmp_path))
    died = "A worker died or was killed while executing a task by an unexpected system error."
    scarce = "1 Workers (tasks / actors) killed due to memory pressure (OOM)"
    with caplog.at_level(logging.DEBUG, logger="baton"):
        worker.listen_error_messages(_Told(died, scarce), threading.Event())
    assert "Worker" not in capfd.readouterr().out
    found = {each.message.removeprefix("Ray says: "): each.levelno for each in caplog.records}
    assert (found[died], found[scarce]) == (logging.DEBUG, logging.WARNING)


def test_a_long_temporary_folder_is_not_used_for_rays_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("x" * 40)).mkdir()
    for parent in (str(long), "/tmp"):
        monkeypatch.setattr(tempfile, "tempdir", parent)
        assert ray_start.parent_folder() == Path(f"/tmp/baton-{os.getuid()}")
