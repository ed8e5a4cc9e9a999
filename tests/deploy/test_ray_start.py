"""A Ray of our own that does not start at the first try. Ray itself is the neighbour here."""

import subprocess
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import ray

from baton.deploy.cluster import ray_start
from baton.deploy.cluster.ray_start import RayConfig
from baton.deploy.errors import StartError


class FailingRay:
    """`init` leaves a process behind and fails, until `failures` are used up."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[object] = []
        self.left: list[subprocess.Popen[bytes]] = []

    def init(self, **options: object) -> None:
        self.calls.append(options)
        if self.failures:
            self.failures -= 1
            self.left.append(subprocess.Popen(["sleep", "60"]))
            raise Exception("The current node timed out during startup.")

    def close(self) -> None:
        for process in self.left:
            process.kill()
            process.wait()


@pytest.fixture
def bystander() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingRay]:
    with closing(FailingRay(failures=3)) as fake:
        monkeypatch.setattr(ray, "init", fake.init)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        yield fake


def test_it_is_tried_again_and_leaves_nothing_behind(
    fake: FailingRay, bystander: psutil.Process
) -> None:
    fake.failures = 2
    ray_start.connect(RayConfig())
    assert len(fake.calls) == 3
    assert [process.wait(timeout=60) for process in fake.left] == [-9, -9]
    assert bystander.is_running()


def test_in_the_end_it_says_why_and_what_ran(fake: FailingRay) -> None:
    with pytest.raises(StartError, match=r"on this machine .* timed out .*; .* sleep \("):
        ray_start.connect(RayConfig())


def test_a_ray_that_others_run_is_asked_once(fake: FailingRay) -> None:
    with pytest.raises(StartError, match=r"Ray 127.0.0.1:6379 does not start or answer"):
        ray_start.connect(RayConfig(address="127.0.0.1:6379"))
    assert len(fake.calls) == 1
