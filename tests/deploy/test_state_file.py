"""Tests of the state file, by which other commands find a running cluster."""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.deploy.cluster.cluster_name import check_name, new_name
from baton.deploy.errors import DeployError, NotRunning, StartError
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import (
    ClusterState,
    StateFile,
    check_unused,
    folder,
    newest,
    process_named,
    published,
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder of this process, which runs."""
    with owned_folder(folder()) as own:
        yield own


URLS = ("http://127.0.0.1:1",)


def _state(
    name: str = "n", pid: int | None = None, pid_started: float = 0.0, urls: Sequence[str] = URLS
) -> ClusterState:
    process = process_named(os.getpid()) if pid is None else (pid, pid_started)
    return ClusterState(name, *process, time.time(), "m", urls, "127.0.0.1:2", "c")


@contextmanager
def _serving(own: Path, state: ClusterState) -> Iterator[None]:
    with published(own, state) as file:
        file.serves()
        yield


def test_a_cluster_is_found_while_it_runs_and_not_after(own: Path) -> None:
    with _serving(own, _state()):
        assert newest() == newest("n") and newest().http_url == "http://127.0.0.1:1"
    with pytest.raises(NotRunning, match="baton serve"):
        newest()


def test_a_router_that_moves_is_found_where_it_is(own: Path) -> None:
    with published(own, _state()) as file:
        file.move(["http://10.0.0.1:1"], "10.0.0.1:2")
        assert newest(starting=True).http_urls == ["http://10.0.0.1:1"]
        with pytest.raises(NotRunning, match="does not serve yet"):
            newest()
        file.serves()
        file.move(["http://10.0.0.2:1"], "10.0.0.2:2")
        assert newest().http_urls == ["http://10.0.0.2:1"]
        assert newest().grpc_address == "10.0.0.2:2"


def test_of_several_routers_one_that_takes_connections_is_asked(own: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen: a router that is being restarted
        gone, here = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (silent, there))
        with _serving(own, _state(urls=[gone, here, gone])):
            assert newest().http_url == here
        with _serving(own, _state(urls=[gone, gone])):
            assert newest().http_url == gone


def test_a_cluster_that_starts_is_found_by_those_who_ask_for_one(own: Path) -> None:
    with published(own, _state()) as file:
        assert newest(starting=True).name == newest("n", starting=True).name == "n"
        with pytest.raises(
            NotRunning, match="the cluster n does not serve yet; see `baton status`"
        ):
            newest()
        file.serves()
        assert newest() == newest(starting=True)
    with pytest.raises(NotRunning, match="no cluster of yours runs"):
        newest(starting=True)


def test_the_next_life_of_a_supervisor_does_not_say_that_the_cluster_starts(own: Path) -> None:
    StateFile(own, _state()).serves()  # and the supervisor dies
    with published(own, _state()):
        assert newest().name == "n"


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "x" * 41, "ä"])
def test_a_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(StartError, match=r"--cluster .*: expected 1 to 40 lower-case letters"):
        check_name(name)


def test_names_that_are_made_up_are_good_ones() -> None:
    for name in (new_name(), "a", "a-1", "x" * 40):
        check_name(name)


def test_a_name_that_a_running_cluster_has_is_refused(own: Path) -> None:
    check_unused("n")
    with published(own, _state()):
        with pytest.raises(StartError, match=r"your cluster at .* has this name"):
            check_unused("n")
        check_unused("other")


def test_a_folder_whose_lock_nobody_holds_is_not_the_cluster() -> None:
    with owned_folder(folder()) as own:
        StateFile(own, _state()).serves()
        assert newest().name == "n"
    with pytest.raises(NotRunning):
        newest()


def test_a_pid_that_another_process_has_now_is_not_the_cluster(own: Path) -> None:
    pid, started = process_named(os.getpid())
    StateFile(own, _state(pid=pid, pid_started=started - 100)).serves()
    with pytest.raises(NotRunning):
        newest()


def test_the_cluster_started_last_is_the_one_and_others_are_found_by_name(own: Path) -> None:
    with (
        _serving(own, _state("first")),
        owned_folder(folder()) as other,
        _serving(other, _state("second")),
    ):
        assert newest().name == "second"
        assert newest("first").name == "first"
        with pytest.raises(NotRunning, match="has the name 'third'; running: first, second"):
            newest("third")


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


def test_a_cluster_is_found_while_the_disk_is_full(tmp_path: Path) -> None:
    """No file may have a byte, so that `tempfile` would look for another folder."""
    words = "from baton.deploy.files.state_file import folder; print(folder())"
    found = subprocess.run(
        [sys.executable, "-c", words],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout == f"{folder(tmp_path)}\n"
