"""Tests of the state file, by which other commands find a running cluster."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from baton.deploy.client.owned_folder import owned_folder
from baton.deploy.client.state_file import folder, newest, published
from baton.deploy.errors import DeployError, NotRunning


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder of this process, which runs."""
    with owned_folder(folder()) as own:
        yield own


def _write(own: Path, pid: int, started: float) -> None:
    path = own / "state.json"
    fields = {
        "pid": pid,
        "started": started,
        "model": "m",
        "http_url": "u",
        "grpc_address": "g",
        "control": "c",
    }
    path.write_text(json.dumps(fields))


def test_a_cluster_is_found_while_it_runs_and_not_after(own: Path) -> None:
    with published(own, "m", "http://127.0.0.1:1", "127.0.0.1:2") as state:
        assert newest() == state and state.http_url == "http://127.0.0.1:1"
    with pytest.raises(NotRunning, match="baton serve"):
        newest()


def test_a_folder_whose_lock_nobody_holds_is_not_the_cluster() -> None:
    me = psutil.Process()
    with owned_folder(folder()) as own:
        _write(own, me.pid, me.create_time())
        assert newest().pid == me.pid
    with pytest.raises(NotRunning):
        newest()


def test_a_pid_that_another_process_has_now_is_not_the_cluster(own: Path) -> None:
    me = psutil.Process()
    _write(own, me.pid, me.create_time() - 100)
    with pytest.raises(NotRunning):
        newest()


def test_the_cluster_started_last_is_the_one(own: Path) -> None:
    first = psutil.Process(1)  # surely older than this one
    _write(own, first.pid, first.create_time())
    with (
        owned_folder(folder()) as other,
        published(other, "mine", "http://127.0.0.1:1", "127.0.0.1:2"),
    ):
        assert newest().model == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_file_that_cannot_be_read_is_passed_over(text: str, own: Path) -> None:
    (own / "state.json").write_text(text)
    with pytest.raises(NotRunning):
        newest()


@pytest.mark.parametrize("mode", [0o777, 0o701, 0o710])
def test_a_folder_that_others_can_enter_is_refused(mode: int) -> None:
    folder().chmod(mode)
    with pytest.raises(DeployError, match="only you"):
        newest()
