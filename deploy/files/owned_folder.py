"""Folders that belong to one running process each, and the removal of those whose process ended.

A process holds a lock on a file in its folder. The kernel releases the lock when the process ends,
however it ends. Process ids could not tell: they are used again, and containers that share a
temporary folder do not see each other's.
"""

import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "lock"
_RAY = "ray-address"
"""The file in a folder that lives as long as the Ray at this address, whoever holds the lock."""
_ASK_S = 1.0
_DRAFT = "."  # the first letter of a folder whose process does not hold the lock yet
_DRAFT_S = 60.0  # after this time, whoever made a draft has died


@contextmanager
def owned_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent` that is this process's own until the context ends.

    First removes the folders whose processes have ended. The folder itself stays until the next
    start, so that logs in it can be read.
    """
    remove_ended(parent)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=parent))
    lock = os.open(draft / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield draft.rename(parent / draft.name.removeprefix(_DRAFT))
    finally:
        os.close(lock)


def kept_folder(path: Path, ray_address: str) -> Path:
    """Make a folder that stays until the Ray at `ray_address`, HOST:PORT, has ended.

    The same Ray's folder is found again. Raises FileExistsError for that of another Ray.
    """
    remove_ended(path.parent)
    if path.exists() and (path / _RAY).read_text() == ray_address:
        return path
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=path.parent))
    (draft / _LOCK).touch(mode=0o600)
    (draft / _RAY).write_text(ray_address)
    if path.exists():
        shutil.rmtree(draft)
        raise FileExistsError(path)
    return draft.rename(path)


def owned_folders(parent: Path) -> list[Path]:
    """Return the folders in `parent` whose processes run."""
    return [path for path in parent.iterdir() if not _is_draft(path) and _is_held(path)]


def remove_ended(parent: Path) -> None:
    """Remove the folders in `parent` whose processes have ended."""
    for path in parent.iterdir():
        if not _is_draft(path) and _has_ended(path):
            draft = path.with_name(_DRAFT + path.name)
            with suppress(OSError):  # another start removes it too
                path.rename(draft)
                shutil.rmtree(draft, ignore_errors=True)
        elif _is_draft(path) and _is_old(path):
            shutil.rmtree(path, ignore_errors=True)


def _has_ended(path: Path) -> bool:
    """Return True for an owned folder whose lock nobody holds."""
    return (path / _LOCK).exists() and not _is_held(path)


def _is_held(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except OSError:  # no owned folder
        return False
    if _ray_answers(path):
        os.close(lock)
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _ray_answers(path: Path) -> bool:
    """Return True for a folder that a Ray keeps, if that Ray takes connections."""
    try:
        host, _, port = (path / _RAY).read_text().rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _ASK_S).close()
    except (OSError, ValueError):
        return False
    return True


def _is_draft(path: Path) -> bool:
    return path.name.startswith(_DRAFT)


def _is_old(path: Path) -> bool:
    with suppress(OSError):  # it has got its name meanwhile
        return time.time() - path.stat().st_mtime > _DRAFT_S
    return False
