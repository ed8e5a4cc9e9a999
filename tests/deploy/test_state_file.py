"""Tests of the state file, by which other commands find a running cluster."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from baton.deploy.client.state_file import folder, newest, published
from baton.deploy.errors import DeployError, NotRunning


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _write(pid: int, started: float) -> Path:
    path = folder() / f"{pid}.json"
    fields = {
        "pid": pid,
        "started": started,
        "model": "m",
        "http_url": "u",
        "grpc_address": "g",
        "control": "c",
    }
    path.write_text(json.dumps(fields))
    return path


def test_a_cluster_is_found_while_it_runs_and_not_after() -> None:
    with published("m", "http://127.0.0.1:1", "127.0.0.1:2") as state:
        assert newest() == state and state.http_url == "http://127.0.0.1:1"
    with pytest.raises(NotRunning, match="baton serve"):
        newest()


def test_what_a_dead_process_left_is_not_found_and_is_removed() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    path = _write(ended.pid, psutil.Process().create_time())
    with pytest.raises(NotRunning):
        newest()
    assert not path.exists()


def test_a_pid_that_another_process_has_now_is_not_the_cluster() -> None:
    me = psutil.Process()
    _write(me.pid, me.create_time() - 100)
    with pytest.raises(NotRunning):
        newest()


def test_the_cluster_started_last_is_the_one() -> None:
    first = psutil.Process(1)  # surely older than this one
    _write(first.pid, first.create_time())
    with published("mine", "http://127.0.0.1:1", "127.0.0.1:2"):
        assert newest().model == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_file_that_cannot_be_read_is_passed_over(text: str) -> None:
    (folder() / "1.json").write_text(text)
    with pytest.raises(NotRunning):
        newest()


def test_a_folder_that_others_can_write_to_is_refused() -> None:
    folder().chmod(0o777)
    with pytest.raises(DeployError, match="only you"):
        newest()
