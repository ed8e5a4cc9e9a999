"""The bytes of large requests while they are received and until they were read."""

import os
from types import TracebackType
from typing import Self

from baton.api.errors import RETRY_AFTER_S
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

MAX_BYTES = 768 << 20
MAX_FILES = 256


class HeldBytes:
    """The sum of what all files hold, and its bounds."""

    def __init__(self, most: int = MAX_BYTES, files: int = MAX_FILES) -> None:
        self.bytes = 0
        self.files = 0
        self._most = most
        self._most_files = files

    def add(self, size: int) -> None:
        """Count more bytes. Raises OVERLOADED if they would be too many."""
        if self.bytes + size > self._most:
            raise _busy()
        self.bytes += size

    def open(self) -> "BodyFile":
        """Return a new file. Raises OVERLOADED if there are too many."""
        if self.files >= self._most_files:
            raise _busy()
        try:
            made = BodyFile(self)
        except OSError as error:  # no descriptor is free
            raise _busy() from error
        self.files += 1
        return made


class BodyFile:
    """A file in memory, which another process can be given. A context manager that frees it.

    The router never joins the parts of a body or copies them to a pipe: it appends each to a file,
    and the process that reads the body gets the file.
    """

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.size = 0
        self.descriptor = os.memfd_create("body", os.MFD_CLOEXEC)

    def write(self, part: bytes) -> None:
        """Append bytes. Raises OVERLOADED if all files together would hold too many."""
        self._held.add(len(part))
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
        self._held.bytes -= self.size
        self._held.files -= 1


def _busy() -> ApiError:
    return ApiError(
        ErrorCode.OVERLOADED,
        "too many large requests wait to be read; send it again later",
        retry_after_s=RETRY_AFTER_S,
    )
