"""The folder of the files that hold prefixes. Several workers may share it.

A file's path is SALT/PREFIX.FIRST: the keyed names of its salt and its prefix, and the number of
pages that the files of shorter prefixes hold. Whatever has another name is left alone.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from baton.engine.tiers.prefix_file import DRAFT

_FOLDER = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{32}\.(\d{1,9})")
_ABANDONED_S = 600.0
"""The age from which a file that is not whole is nobody's any more."""


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
        self._root = root
        self._budget, self._most_age_s = budget, most_age_s
        self._clock = clock
        self._known: dict[str, StoredFile] = {}  # by "salt/prefix"; replaced by each look

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in list(self._known.values()))

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
        self._known = known
        self.make_room(0)

    def make_room(self, nbytes: int) -> bool:
        """Remove what was not used for longest until so many bytes have room; False where they
        never have."""
        if nbytes > self._budget:
            return False
        over = self.nbytes + nbytes - self._budget
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
        self._known[_key_of(path)] = StoredFile(path, first, nbytes, self._clock())

    def use(self, chain: Iterable[ChainedFile]) -> None:
        """Note that files were used, the longest prefix first: it goes before those it needs."""
        for place, each in enumerate(reversed(list(chain))):
            file, now = each.file, self._clock() + place / 1000
            with suppress(OSError):
                os.utime(file.path, (now, now))
            self._known[_key_of(file.path)] = file._replace(used=now)

    def remove(self, file: StoredFile) -> None:
        """Remove a file. What needs it is found no more."""
        with suppress(OSError):
            file.path.unlink(missing_ok=True)
        self._known.pop(_key_of(file.path), None)

    def clear(self, folder: str | None = None) -> None:
        """Remove all files, or those of one salt."""
        self.look()
        for file in list(self._known.values()):
            if folder is None or file.path.parent.name == folder:
                self.remove(file)


def _key_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def _listed(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in the folders of `root`. Others may remove any meanwhile."""
    with suppress(FileNotFoundError):
        for folder in list(os.scandir(root)):
            if not _FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):
                for file in list(os.scandir(folder.path)):
                    with suppress(FileNotFoundError):
                        yield Path(file.path), file.stat(follow_symlinks=False)
