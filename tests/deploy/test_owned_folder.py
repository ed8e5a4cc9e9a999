"""Folders of running processes stay; those of processes that have ended are removed."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.deploy.files.owned_folder import (
    kept_folder,
    owned_folder,
    owned_folders,
    remove_ended,
)

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys
from pathlib import Path
from baton.deploy.files.owned_folder import owned_folder
with owned_folder(Path(sys.argv[1])) as own:
    (own / "state.json").touch()
    (own / "control.sock").touch()
    (own / "ray").mkdir()
    print(own, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def another(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Another process, and its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}/.types"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_is_removed_at_the_next_start(
    tmp_path: Path, another: tuple["subprocess.Popen[str]", Path]
) -> None:
    process, left = another
    with owned_folder(tmp_path) as own:
        assert (left / "control.sock").exists(), "its process runs"
        assert set(owned_folders(tmp_path)) == {own, left}
        process.kill()
        process.wait()
        assert owned_folders(tmp_path) == [own]
        assert (left / "control.sock").exists()
        with owned_folder(tmp_path) as second:
            assert set(tmp_path.iterdir()) == {own, second}


def test_a_folder_stays_until_the_next_start_so_that_logs_can_be_read(tmp_path: Path) -> None:
    with owned_folder(tmp_path) as own:
        (own / "log").touch()
        assert own.stat().st_mode & 0o077 == 0
    assert (own / "log").exists() and owned_folders(tmp_path) == []
    remove_ended(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_owned_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "certificates").mkdir()
    (tmp_path / "12.json").touch()
    remove_ended(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 and owned_folders(tmp_path) == []


def test_a_folder_whose_owner_died_before_it_held_the_lock_is_removed_later(
    tmp_path: Path,
) -> None:
    (draft := tmp_path / ".abc").mkdir()
    remove_ended(tmp_path)
    assert draft.exists(), "its owner may be about to hold the lock"
    os.utime(draft, (time.time() - 3600,) * 2)
    remove_ended(tmp_path)
    assert not draft.exists()


def test_a_kept_folder_stays_while_its_ray_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = f"127.0.0.1:{ray.getsockname()[1]}"
        kept = kept_folder(tmp_path / "kept", address)
        (kept / "key").touch(mode=0o600)
        remove_ended(tmp_path)
        assert owned_folders(tmp_path) == [kept] and (kept / "key").exists()
        assert kept_folder(tmp_path / "kept", address) == kept, "the supervisor's next life"
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            pytest.raises(FileExistsError),
        ):
            kept_folder(tmp_path / "kept", f"127.0.0.1:{other.getsockname()[1]}")
    assert owned_folders(tmp_path) == []
    remove_ended(tmp_path)
    assert list(tmp_path.iterdir()) == []
