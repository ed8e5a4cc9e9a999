"""`baton serve` on a Ray that dies under it: it says so and ends with an error. And a Ray whose
`baton serve` is killed: it ends too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from kit.polling import wait_until
from kit.processes import until_ended

from baton.deploy.files.owned_folder import owned_folder

pytestmark = pytest.mark.cluster

DEADLINE_S = 150.0


def vital(serve: "subprocess.Popen[str]", name: str) -> psutil.Process:
    (found,) = [p for p in psutil.Process(serve.pid).children() if p.name() == name]
    return found


@contextmanager
def served(tiny: Path, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[Path]]]:
    """A `baton serve` that serves, and its state files."""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "baton.cli.main", "serve", "--model", str(tiny), "--memory-gb",
             "0.25", "--threads", "1", "--http-port", "0", "--grpc-port", "0"]  # fmt: skip
    with subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as serve:
        wait_until(lambda: serve.poll() is not None or list(tmp_path.glob("baton-*/*/state.json")))
        assert serve.poll() is None, serve.communicate()
        yield serve, list(tmp_path.glob("baton-*/*/state.json"))


def names_under(serve: "subprocess.Popen[str]") -> list[str]:
    names = []
    for process in psutil.Process(serve.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


def test_nothing_of_ray_outlives_a_killed_serve(tiny: Path, tmp_path: Path) -> None:
    with served(tiny, tmp_path) as (serve, _):
        wait_until(lambda: any(name.startswith("ray::Runtime") for name in names_under(serve)))
        under = psutil.Process(serve.pid).children(recursive=True)
        serve.kill()
        until_ended(under, DEADLINE_S)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("gcs_server", "control store"),
        pytest.param("raylet", "raylet", marks=pytest.mark.chaos),  # by its length
    ],
)
def test_a_lost_ray_is_noticed_and_nothing_stays_behind(
    name: str, called: str, tiny: Path, tmp_path: Path
) -> None:
    with served(tiny, tmp_path) as (serve, states):
        under = psutil.Process(serve.pid).children(recursive=True)
        victim = vital(serve, name)
        victim.kill()
        said, _ = serve.communicate(timeout=DEADLINE_S)
    assert serve.returncode == 1
    assert f"Ray's {called} (pid {victim.pid}) has ended" in said, said
    until_ended(under, DEADLINE_S)
    (left,) = {state.parent for state in states}
    assert not states[0].exists()
    with owned_folder(left.parent):
        assert not left.exists(), "cleaned at the next start"
