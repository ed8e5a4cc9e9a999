"""The folder of the files that hold prefixes. Several workers may share it.

A file's path is SALT/PREFIX.FIRST: the keyed names of its salt and its prefix, and the number of
pages that the files of shorter prefixes hold. Whatever has another name is left alone.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.engine.tiers.prefix_file import DRAFT

_FOLDER = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{32}\.(\d{1,9})")
_ABANDONED_S = 600.0
"""The age from which a file that is not whole is nobody's any more."""


class KeptFileError(BatonError):
    """A file that was to be removed and is still there."""

    code = ErrorCode.INTERNAL


class StoredFile(NamedTuple):
    """One file."""

    path: Path
    first: int  # its first page: files of shorter prefixes hold those before
    nbytes: int
    used: float  # Unix time


class ChainedFile(NamedTuple):
    """The pages [file.first, end) of a prefix, and the state after them."""

    file: StoredFile
    end: int

    @property
    def name(self) -> str:
        """The name that its signature is bound to."""
        return f"{self.file.path.parent.name}/{self.file.path.name}"


class FileFolder:
    """The files that there were at the last look. One thread writes: it alone calls `look`,
    `make_room` and `add`. Any may call the rest.
    """

    def __init__(
        self,
        root: Path,
        budget: int,
        most_age_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """budget: bytes of all files, whosever they are. most_age_s: since a file was last used."""
        self._root, self.budget = root, budget
        self._most_age_s = most_age_s
        self._clock = clock
        self._known: dict[str, StoredFile] = {}  # by "salt/prefix"; replaced by each look
        self._changing = threading.Lock()  # held for a change of `_known` and `nbytes`
        self._clears = 0
        self.nbytes = 0
        """Bytes of all files."""

    def __len__(self) -> int:
        return len(self._known)

    def chain(self, folder: str, names: list[str], above: int) -> list[ChainedFile]:
        """Return the files that hold the longest of a prompt's prefixes, in their order; [] where
        there is none of more than `above` pages.

        names: of the prompt's prefixes of 1, 2, … pages, in the salt's folder.
        """
        known = self._known
        for pages in range(len(names), above, -1):
            found: list[ChainedFile] = []
            end = pages
            while (file := known.get(f"{folder}/{names[end - 1]}")) and file.first < end:
                found.insert(0, ChainedFile(file, end))
                end = file.first
                if not end:
                    return found
        return []

    def look(self) -> None:
        """Read the folder anew; remove what is too old or too much."""
        clears = self._clears
        known: dict[str, StoredFile] = {}
        for path, stat in _listed(self._root):
            age = self._clock() - stat.st_mtime
            if path.name.startswith(DRAFT):
                if age > _ABANDONED_S:
                    path.unlink(missing_ok=True)
                continue
            if (named := _FILE.fullmatch(path.name)) is None:
                continue
            if age > self._most_age_s:
                path.unlink(missing_ok=True)
            else:
                known[_key_of(path)] = StoredFile(path, int(named[1]), stat.st_size, stat.st_mtime)
        with self._changing:
            if clears != self._clears:  # what was listed may be gone
                return
            self._known = known
            self.nbytes = sum(file.nbytes for file in known.values())
        self.make_room(0)

    def make_room(self, nbytes: int) -> bool:
        """Remove what was not used for longest until so many bytes have room; False where they
        never have."""
        if nbytes > self.budget:
            return False
        over = self.nbytes + nbytes - self.budget
        oldest_first = sorted(self._known.values(), key=lambda file: file.used)
        for file in oldest_first if over > 0 else ():
            self.remove(file)
            over -= file.nbytes
            if over <= 0:
                break
        return True

    def path(self, folder: str, name: str, first: int) -> Path:
        """Return the path of the file of a prefix that holds its pages from `first` on."""
        return self._root / folder / f"{name}.{first}"

    def add(self, path: Path, first: int, nbytes: int) -> None:
        """Note a file that was written."""
        self._note(StoredFile(path, first, nbytes, self._clock()))

    def use(self, chain: Iterable[ChainedFile]) -> None:
        """Note that files were used, the longest prefix first: it goes before those it needs."""
        for place, each in enumerate(reversed(list(chain))):
            file, now = each.file, self._clock() + place / 1000
            with suppress(OSError):
                os.utime(file.path, (now, now))
            with self._changing:
                if (key := _key_of(file.path)) in self._known:
                    self._known[key] = file._replace(used=now)

    def remove(self, file: StoredFile) -> None:
        """Remove a file. What needs it is found no more."""
        with suppress(OSError):
            file.path.unlink(missing_ok=True)
        with self._changing:
            if (known := self._known.pop(_key_of(file.path), None)) is not None:
                self.nbytes -= known.nbytes

    def clear(self, folders: str = "") -> None:
        """Remove all files, those that are not whole among them, from the folders whose names begin
        so, and the folders that are empty then. Raises KeptFileError where any stays.
        """
        try:
            for path, _ in _listed(self._root, folders):
                if _FILE.fullmatch(path.name) or path.name.startswith(DRAFT):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise KeptFileError(f"files of prefixes cannot be removed: {error}") from error
        for folder in list(self._root.glob(f"{folders}*")):
            if _FOLDER.fullmatch(folder.name):
                with suppress(OSError):  # it has others' files, or some again
                    folder.rmdir()
        with self._changing:
            self._clears += 1
            left = {key: file for key, file in self._known.items() if not key.startswith(folders)}
            self._known, self.nbytes = left, sum(file.nbytes for file in left.values())

    def _note(self, file: StoredFile) -> None:
        key = _key_of(file.path)
        with self._changing:
            before = self._known.get(key)
            self.nbytes += file.nbytes - (before.nbytes if before is not None else 0)
            self._known[key] = file


def _key_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def _listed(root: Path, folders: str = "") -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in the folders of `root` whose names begin so. Others may remove any
    meanwhile."""
    with suppress(FileNotFoundError):
        for folder in list(os.scandir(root)):
            if not _FOLDER.fullmatch(folder.name) or not folder.name.startswith(folders):
                continue
            if not folder.is_dir(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):
                for file in list(os.scandir(folder.path)):
                    with suppress(FileNotFoundError):
                        yield Path(file.path), file.stat(follow_symlinks=False)
