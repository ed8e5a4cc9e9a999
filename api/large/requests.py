"""Large requests of one server: their bytes, and the processes that read them."""

import asyncio
import time
from array import array
from collections.abc import Collection
from pathlib import Path

from baton.api.errors import invalid
from baton.api.large.held_bytes import BodyFile, HeldBytes
from baton.api.large.job import EncodeJob, Parsed, ParseJob
from baton.api.large.process import SHORT_BYTES, LargeRequestProcess
from baton.text.template_options import TemplateOptions

BYTES_PER_S = 100 << 20
"""A quarter of a core. Tokenising what comes takes ten times as long."""
BURST_S = 0.005
"""The most time that was not used and may be used later."""


class Pace:
    """The bound on the bytes of all large bodies together.

    A server stops reading a connection until its last part was taken: a reader that waits keeps
    its client waiting, and no bytes pile up.
    """

    def __init__(self) -> None:
        self._due = 0.0  # when all parts so far have had their time

    async def took(self, size: int) -> None:
        """Wait for the end of the time that a part of `size` bytes may take."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST_S) + size / BYTES_PER_S
        if self._due > now:
            await asyncio.sleep(self._due - now)


class LargeRequests:
    """Two processes: one for requests up to a megabyte, which do not wait for larger ones."""

    def __init__(self, folder: Path, template: TemplateOptions | None = None) -> None:
        """folder: the tokenizer's. template: what is different from its templates."""
        self._held = HeldBytes()
        self.pace = Pace()
        """That of receiving large bodies."""
        self._short = LargeRequestProcess(folder, template)
        self._long = LargeRequestProcess(folder, template)

    def start(self) -> None:
        """Start the process for the shorter ones, so that the first does not wait for that. It
        takes some 45 MB; the other one is started when it is needed."""
        self._short.start()

    def open(self, holders: Collection[str] = ()) -> BodyFile:
        """Return a file for the bytes of one request. holders: its key and its address, which have
        a share each. Raises OVERLOADED if there are too many."""
        return self._held.open(holders)

    async def parse(self, job: ParseJob, data: BodyFile) -> Parsed:
        """Return a body without its prompts. Raises `ApiError`."""
        found = await self._process(data).run(job, data)
        assert isinstance(found, Parsed)
        return found

    async def encode(self, job: EncodeJob, text: str) -> "array[int]":
        """Return the ids of a text. Raises `ApiError`."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            why = f"{job.param}: the text has a lone surrogate; expected valid Unicode"
            raise invalid(job.param, why) from error
        with self.open() as data:
            data.write(raw)
            found = await self._process(data).run(job, data)
        assert isinstance(found, array)
        return found

    def close(self) -> None:
        """End the processes. Jobs that wait or are under way fail."""
        self._short.end()
        self._long.end()

    def _process(self, data: BodyFile) -> LargeRequestProcess:
        return self._short if data.size <= SHORT_BYTES else self._long
