"""The bytes of large requests while they are received and until they were read."""

import os
from collections import Counter
from collections.abc import Collection
from types import TracebackType
from typing import Self

from baton.api.errors import RETRY_AFTER_S
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

MAX_BYTES = 768 << 20
MAX_FILES = 256
SHARES = 4
"""One client, by key or by address, may hold one part of so many of the files and the bytes."""


class HeldBytes:
    """The sum of what all files hold, and its bounds."""

    def __init__(self, most: int = MAX_BYTES, files: int = MAX_FILES) -> None:
        self.bytes = 0
        self.files = 0
        self._files_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._most = most
        self._most_files = files

    def add(self, size: int, holders: Collection[str]) -> None:
        """Count more bytes. Raises OVERLOADED if they would be too many."""
        most = self._most // SHARES
        if self.bytes + size > self._most or any(
            self._bytes_of[each] + size > most for each in holders
        ):
            raise _busy()
        self.bytes += size
        for each in holders:
            self._bytes_of[each] += size

    def open(self, holders: Collection[str] = ()) -> "BodyFile":
        """Return a new file. holders: whose it is, a key and an address; each has a share. Raises
        OVERLOADED if there are too many."""
        most = max(self._most_files // SHARES, 1)
        if self.files >= self._most_files or any(self._files_of[each] >= most for each in holders):
            raise _busy()
        try:
            made = BodyFile(self, holders)
        except OSError as error:  # no descriptor is free
            raise _busy() from error
        self.files += 1
        self._files_of.update(holders)
        return made

    def closed(self, size: int, holders: Collection[str]) -> None:
        """Count a file and its bytes no more."""
        self.bytes -= size
        self.files -= 1
        for each in holders:
            self._files_of[each] -= 1
            self._bytes_of[each] -= size
            if not self._files_of[each]:
                del self._files_of[each], self._bytes_of[each]


class BodyFile:
    """A file in memory, which another process can be given. A context manager that frees it.

    The router never joins the parts of a body or copies them to a pipe: it appends each to a file,
    and the process that reads the body gets the file.
    """

    def __init__(self, held: HeldBytes, holders: Collection[str]) -> None:
        self._held = held
        self._holders = holders
        self.size = 0
        self.descriptor = os.memfd_create("body", os.MFD_CLOEXEC)

    def write(self, part: bytes) -> None:
        """Append bytes. Raises OVERLOADED if all files together would hold too many."""
        self._held.add(len(part), self._holders)
        self.size += len(part)
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.descriptor)
        self._held.closed(self.size, self._holders)


def _busy() -> ApiError:
    return ApiError(
        ErrorCode.OVERLOADED,
        "too many large requests wait to be read; send it again later",
        retry_after_s=RETRY_AFTER_S,
    )
